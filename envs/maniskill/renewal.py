"""Makes a reset forget the past to the bit: all bodies of a scene move into a fresh physics scene.

Contact caches, solver warm starts and the order of contact pairs live in the engine's scene and cannot be cleared. In
contact-rich tasks they decide the next episode's trajectory. A move costs about half a millisecond.

What a body takes with it is how long it is to stay awake: the engine raises that time when something touches the body,
and putting the body at a new pose never lowers it. A cube that fell asleep some steps later than another time has been
pressed on by the solver a little longer. Sleeping and waking sets the time to the engine's own start value.
"""

from __future__ import annotations

import sapien
import sapien.physx as physx
from mani_skill.envs.sapien_env import BaseEnv


def renewed(env: BaseEnv, scene: sapien.Scene) -> sapien.Scene:
    """A scene with a new CPU physics system and the entities (and renderer, if any) of `scene`, which is left empty."""
    env._set_scene_config()  # the engine's defaults are process-wide and may be another task's by now
    system = physx.PhysxCpuSystem()
    system.timestep = scene.physx_system.timestep
    entities = list(scene.entities)
    for entity in entities:
        scene.remove_entity(entity)
    systems: list[sapien.System] = [system]
    if env._render_device is not None:
        systems.append(scene.render_system)
    fresh = sapien.Scene(systems)
    for entity in entities:
        fresh.add_entity(entity)
    for body in system.rigid_dynamic_components:
        if not body.kinematic:
            body.put_to_sleep()
            body.wake_up()
    return fresh
