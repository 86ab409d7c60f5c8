"""Video: recording episodes to MP4 with an overlay, and putting two recordings side by side.

`VideoRecorder` takes pictures and costs its caller one copy of each; a process of its own draws and encodes. It knows
nothing of environments, policies or episodes beyond an index and a picture.
"""

from __future__ import annotations

from envs.video.codec import read_frames, side_by_side, video_info
from envs.video.overlay import Overlay
from envs.video.recorder import Keep, VideoRecorder

__all__ = ["Keep", "Overlay", "VideoRecorder", "read_frames", "side_by_side", "video_info"]
