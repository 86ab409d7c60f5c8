"""Program that draws one frame with one simulator and saves it: `python -m embodied.system.frames SIMULATOR OUT.png`.

The doctor runs it in a child process, because a broken driver may crash or hang. It uses the simulators as they are,
without this project's adapters, so that what it reports is the machine's doing.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import traceback
from enum import Enum
from pathlib import Path

import numpy as np

from embodied.errors import EXIT_DONE, EXIT_FAILED, EmbodiedError
from envs.rendering import cuda_devices_hidden, prepare_mujoco, prepare_vulkan, silence_exit

SIZE = 256  # pixels, square
LEAST_SPREAD = 5.0  # standard deviation of grey levels under which a picture counts as blank


class Simulator(Enum):
    """The simulators that draw."""

    MANISKILL = "maniskill"
    LIBERO = "libero"


def draw_maniskill(device: str) -> np.ndarray:
    """One camera frame of PickCube-v1, uint8 [H, W, 3]; `device` is ManiSkill's render backend ("cpu", "cuda:0")."""
    prepare_vulkan()
    import gymnasium
    import mani_skill.envs  # noqa: F401  registers the tasks

    env = gymnasium.make(
        "PickCube-v1",
        obs_mode="rgb",
        sim_backend="cpu",
        render_backend=device,
        sensor_configs={"width": SIZE, "height": SIZE},
    )
    observation, _ = env.reset(seed=0)
    frame = observation["sensor_data"]["base_camera"]["rgb"][0].cpu().numpy()
    env.close()
    return frame


def draw_libero(device: str) -> np.ndarray:
    """One camera frame of the first LIBERO spatial task, uint8 [H, W, 3]; `device` is an EGL index or "osmesa"."""
    if device == "osmesa":
        os.environ["MUJOCO_GL"] = device
    else:
        os.environ["MUJOCO_EGL_DEVICE_ID"] = device
    prepare_mujoco()
    with cuda_devices_hidden(), contextlib.redirect_stdout(io.StringIO()):
        from libero.libero import benchmark, get_libero_path
        from libero.libero.envs import OffScreenRenderEnv

        task = benchmark.get_benchmark("libero_spatial")().get_task(0)
        description = Path(get_libero_path("bddl_files"), task.problem_folder, task.bddl_file)
        env = OffScreenRenderEnv(bddl_file_name=str(description), camera_heights=SIZE, camera_widths=SIZE)
    silence_exit()
    env.seed(0)
    frame = env.reset()["agentview_image"][::-1]
    env.close()
    return frame


DRAW = {Simulator.MANISKILL: draw_maniskill, Simulator.LIBERO: draw_libero}


def main(arguments: list[str] | None = None) -> int:
    """Draw and save; the reason of a failure is the last line of standard output (libraries fill standard error)."""
    parser = argparse.ArgumentParser(prog="python -m embodied.system.frames", description="Draw one frame.")
    parser.add_argument("simulator", type=Simulator, choices=list(Simulator))
    parser.add_argument("picture", type=Path)
    parser.add_argument("--device", required=True, help="maniskill: cpu or cuda:N; libero: an EGL index or osmesa")
    options = parser.parse_args(arguments)
    try:
        frame = DRAW[options.simulator](options.device)
    except EmbodiedError as error:
        print(error)
        return error.exit_code
    except Exception as error:  # whatever a simulator raises is what this program is there to report
        traceback.print_exc()
        print(f"{type(error).__name__}: {error}".replace("\n", " "))
        return EXIT_FAILED
    spread = float(frame.std())
    if spread < LEAST_SPREAD:
        print(f"the picture is blank: its grey levels spread by {spread:.1f}, at least {LEAST_SPREAD} are expected")
        return EXIT_FAILED
    from PIL import Image

    options.picture.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.ascontiguousarray(frame)).save(options.picture)
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())
