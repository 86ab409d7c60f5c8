"""A task's goal as tests on (model, data), equal to LIBERO's predicates but without its lookups by name.

LIBERO's own objects still say what counts as open, closed, turned on, inside and on top; this module binds them to
the indices of a compiled model once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mujoco
import numpy as np

from embodied.errors import SimulatorError

Test = Callable[[mujoco.MjData], bool]

_ON_TOP_RADIUS = 0.03  # metres between the centres of two objects, in LIBERO's `On`


def compile_goal(env: Any, model: mujoco.MjModel) -> Test:
    """The conjunction of the goal of a LIBERO problem `env`.

    The returned test reads positions, contacts and joints as the last control step left them: bodies and contacts as of
    its last substep's beginning, joints as of its end, which is what the stock simulator's success check sees.
    Raises SimulatorError for a predicate that LIBERO does not define for these objects.
    """
    binder = _Binder(env, model)
    tests = [binder.bind(state) for state in env.parsed_problem["goal_state"]]
    return lambda data: all(test(data) for test in tests)


class _Binder:
    def __init__(self, env: Any, model: mujoco.MjModel) -> None:
        self._env = env
        self._model = model

    def bind(self, state: list[str]) -> Test:
        predicate, *names = state
        unknown = [name for name in names if name not in self._env.object_states_dict]
        makers = {
            ("on", 2): self._on,
            ("in", 2): self._in,
            ("up", 1): self._up,
            ("open", 1): lambda name: self._joints(name, "is_open", any),
            ("close", 1): lambda name: self._joints(name, "is_close", all),
            ("turnon", 1): lambda name: self._joints(name, "turn_on", any),
            ("turnoff", 1): lambda name: self._joints(name, "turn_off", all),
        }
        maker = makers.get((predicate.lower(), len(names)))
        if maker is None or unknown:
            raise SimulatorError(
                f"The goal ({' '.join(state)}) of {self._env.bddl_file_name} "
                + (f"names {', '.join(unknown)}, which the scene does not have." if unknown else "is not understood.")
            )
        return maker(*names)

    def _on(self, name: str, below: str) -> Test:
        """`below` lies under `name`: near its centre and touching, or within a site's footprint."""
        body = self._body(name)
        site_object = self._env.object_sites_dict.get(below)
        if site_object is None:
            support = self._body(below)
            touching = self._touching(below, name)

            def on_object(data: mujoco.MjData) -> bool:
                lower, upper = data.xpos[support], data.xpos[body]
                if lower[2] > upper[2] or np.linalg.norm(lower[:2] - upper[:2]) >= _ON_TOP_RADIUS:
                    return False
                return touching(data)

            return on_object
        site = self._site(below)
        parent = self._env.object_states_dict[below].parent_name
        touching = None if self._env.get_object(parent) is None else self._touching(parent, name)

        def on_site(data: mujoco.MjData) -> bool:
            inside = site_object.under(data.site_xpos[site], data.site_xmat[site].reshape(3, 3), data.xpos[body])
            return bool(inside) and (touching is None or touching(data))

        return on_site

    def _in(self, name: str, container: str) -> Test:
        site_object = self._env.object_sites_dict.get(container)
        if site_object is None:
            raise SimulatorError(f"The goal (in {name} {container}) needs a site to be inside of; that is an object.")
        body, site = self._body(name), self._site(container)

        def inside(data: mujoco.MjData) -> bool:
            matrix = data.site_xmat[site].reshape(3, 3)
            return bool(site_object.in_box(data.site_xpos[site], matrix, data.xpos[body]))

        return inside

    def _up(self, name: str) -> Test:
        body = self._body(name)
        return lambda data: bool(data.xpos[body][2] >= 1.0)

    def _joints(self, name: str, method: str, combine: Callable[[list[bool]], bool]) -> Test:
        """A fixture's own verdict on each of its joints, or of the joints of one of its sites."""
        site_object = self._env.object_sites_dict.get(name)
        owner = self._env.get_object(name)
        joints = owner.joints
        if site_object is not None:
            owner = self._env.get_object(self._env.object_states_dict[name].parent_name)
            joints = site_object.joints
        addresses = [self._model.joint(joint).qposadr[0] for joint in joints]
        verdict = getattr(owner, method, None)
        if verdict is None or not addresses:
            raise SimulatorError(f"The goal asks whether {name} satisfies {method}, which it cannot.")
        return lambda data: combine([bool(verdict(data.qpos[address])) for address in addresses])

    def _touching(self, first: str, second: str) -> Test:
        in_first, in_second = self._geoms(first), self._geoms(second)

        def touching(data: mujoco.MjData) -> bool:
            pairs = data.contact.geom
            if not len(pairs):
                return False
            one, other = pairs[:, 0], pairs[:, 1]
            return bool(np.any((in_first[one] & in_second[other]) | (in_second[one] & in_first[other])))

        return touching

    def _geoms(self, name: str) -> np.ndarray:
        mask = np.zeros(self._model.ngeom, dtype=bool)
        for geom in self._env.get_object(name).contact_geoms:
            mask[self._model.geom(geom).id] = True
        return mask

    def _body(self, name: str) -> int:
        return int(self._env.obj_body_id[name])

    def _site(self, name: str) -> int:
        return int(self._model.site(name).id)
