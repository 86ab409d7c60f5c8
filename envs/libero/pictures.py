"""Draws a compiled scene from its cameras, off screen; one GL context per process, one MuJoCo context per scene."""

from __future__ import annotations

import functools
from typing import Any

import mujoco
import numpy as np

from embodied.errors import ConfigurationError, SimulatorError, suggest
from envs.rendering import egl

_MAX_GEOMS = 1000  # robosuite's; no LIBERO scene has more
_COLLISION_GROUP, _VISUAL_GROUP = 0, 1


class Pictures:
    """Draws one model. The model's visual settings must not change after the first picture.

    Args:
        model: the compiled scene.
        largest: height and width in pixels of the largest picture that `draw` will be asked for.
        simplified: no antialiasing, shadows or reflections.
    """

    def __init__(self, model: mujoco.MjModel, largest: int, *, simplified: bool) -> None:
        self._model = model
        _gl_context().make_current()
        if simplified:
            model.vis.quality.offsamples = 0
        model.vis.global_.offwidth = model.vis.global_.offheight = largest
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(model, maxgeom=_MAX_GEOMS)
        if simplified:
            self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = 0
            self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = 0
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._options = mujoco.MjvOption()
        self._options.geomgroup[_COLLISION_GROUP] = 0
        self._options.geomgroup[_VISUAL_GROUP] = 1
        self._nothing = mujoco.MjvPerturb()

    def draw(self, data: mujoco.MjData, camera: int, out: np.ndarray) -> None:
        """Write the picture of a camera into `out` uint8 [H, W, 3], first row at the top.

        Positions of bodies, cameras and lights in `data` must be up to date.
        """
        self._camera.fixedcamid = camera
        mujoco.mjv_updateScene(
            self._model,
            data,
            self._options,
            self._nothing,
            self._camera,
            mujoco.mjtCatBit.mjCAT_ALL,
            self._scene,
        )
        viewport = mujoco.MjrRect(0, 0, out.shape[1], out.shape[0])
        mujoco.mjr_render(viewport, self._scene, self._context)
        pixels = np.empty(out.shape, dtype=np.uint8)
        mujoco.mjr_readPixels(pixels, None, viewport, self._context)
        out[:] = pixels[::-1]

    def make_current(self) -> None:
        """Claim the process's GL context, which another scene's pictures may have used with other buffers."""
        _gl_context().make_current()
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)

    def close(self) -> None:
        """Free what the graphics driver holds."""
        _gl_context().make_current()  # freeing under another context would delete that one's objects
        self._context.free()


def camera_id(model: mujoco.MjModel, name: str) -> int:
    """The number of a camera. Raises ConfigurationError where this scene lacks it."""
    found = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, name)
    if found < 0:
        known = [model.camera(i).name for i in range(model.ncam)]
        raise ConfigurationError(f"This scene has no camera {name!r}. {suggest(name, known, noun='cameras')}")
    return found


@functools.cache
def _gl_context() -> Any:
    """The process's one GL context, on the backend that MUJOCO_GL names."""
    renderer = egl.prepare_mujoco()
    if renderer.backend is egl.MujocoGL.EGL:
        from mujoco.egl import GLContext
    else:
        from mujoco.osmesa import GLContext
    try:
        context = GLContext(64, 64)
    except (ImportError, RuntimeError, AttributeError) as error:
        raise SimulatorError(
            f"MuJoCo cannot draw with MUJOCO_GL={renderer.backend.value}: {error}. Run `embodied doctor`."
        ) from error
    egl.silence_exit()
    return context
