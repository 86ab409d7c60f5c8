"""N CPU PhysX systems behind the buffer interface of ManiSkill's GPU physics.

ManiSkill's structs (Actor, Link, Articulation, controllers) read and write whole-batch tensors when they believe to be
on a GPU. `BatchedPhysics` provides those tensors in ordinary memory: `pull` fills them from all scenes with two bulk
reads a scene, `push` writes back the scenes whose rows were changed. It simulates nothing itself.

Letters: N scenes, K rigid bodies and links of all scenes, M articulations of all scenes, D largest number of joints.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import sapien
import sapien.physx as physx
import torch

from embodied.errors import SimulatorError
from envs.maniskill.contacts import BodyImpulseQuery, ContactReader, PairImpulseQuery
from envs.maniskill.native_index import assign_row

_POSE, _BODY = 7, 13  # numbers of a pose, of a pose with linear and angular velocity
# SAPIEN's packed poses hold the quaternion first, ManiSkill's rows hold the position first
_FROM_PACKED = np.array([4, 5, 6, 0, 1, 2, 3, 7, 8, 9, 10, 11, 12])
_TO_PACKED = np.argsort(_FROM_PACKED)


class Buffer:
    """A tensor behind the `.torch()` face of SAPIEN's CudaArray, optionally brought up to date when it is asked for."""

    def __init__(self, tensor: torch.Tensor, refresh: Callable[[], None] | None = None) -> None:
        self._tensor = tensor
        self._refresh = refresh

    def torch(self) -> torch.Tensor:
        if self._refresh is not None:
            self._refresh()
        return self._tensor


@dataclasses.dataclass(frozen=True)
class _Articulated:
    """The articulations at one place of a layout: their buffer rows and where they lie in a scene's packed state."""

    rows: np.ndarray  # [n]
    root_rows: np.ndarray  # [n]
    dof: int
    root_at: int
    qpos_at: int
    qvel_at: int
    target_at: int


@dataclasses.dataclass(frozen=True)
class _Layout:
    """Scenes with the same bodies in the same order; they are read together.

    scenes [n]; body_rows [n, dynamic + links]; entities: where the bodies are among a scene's entities.
    """

    scenes: np.ndarray
    body_rows: np.ndarray
    dynamic_rows: np.ndarray
    entities: np.ndarray
    articulated: tuple[_Articulated, ...]
    packed_size: int


class _Drive(NamedTuple):
    """One joint's drive target: its place in the target buffer and the engine's setter."""

    row: int
    joint: int
    scene: int
    set: Callable[[float], None]


class BatchedPhysics:
    """The physics of `scenes`, with the part of PhysxGpuSystem's interface that ManiSkill uses."""

    def __init__(self, scenes: Sequence[sapien.Scene]) -> None:
        self.scenes = list(scenes)
        self.systems: list[physx.PhysxCpuSystem] = [scene.physx_system for scene in self.scenes]
        self.active = np.ones(len(scenes), dtype=bool)  # scenes that `step` advances
        self._contacts = ContactReader(self.systems)
        self._stale = True
        self._link_velocities_stale = True
        self._position_drives: list[_Drive] = []
        self._velocity_drives: list[_Drive] = []

    @property
    def __class__(self) -> type:
        # Actor and Link choose their data source with isinstance(scene.px, PhysxGpuSystem)
        return physx.PhysxGpuSystem

    @property
    def timestep(self) -> float:
        return self.systems[0].timestep

    @timestep.setter
    def timestep(self, seconds: float) -> None:
        for system in self.systems:
            system.timestep = seconds

    def get_scene_offset(self, scene: sapien.Scene) -> np.ndarray:
        """Every scene has its own origin."""
        return np.zeros(3, dtype=np.float32)

    @property
    def rigid_dynamic_components(self) -> list[physx.PhysxRigidDynamicComponent]:
        return [body for system in self.systems for body in system.rigid_dynamic_components]

    @property
    def rigid_static_components(self) -> list[physx.PhysxRigidStaticComponent]:
        return [body for system in self.systems for body in system.rigid_static_components]

    @property
    def articulation_link_components(self) -> list[physx.PhysxArticulationLinkComponent]:
        return [link for system in self.systems for link in system.articulation_link_components]

    # ---------------------------------------------------------------------------------------------- construction

    def gpu_init(self) -> None:
        """Number all bodies and allocate the buffers; called once all objects are built."""
        self._bodies: list[Any] = []
        self._links: list[tuple[int, physx.PhysxArticulationLinkComponent]] = []
        self._articulations: list[physx.PhysxArticulation] = []
        self._joints: list[list[physx.PhysxArticulationJoint]] = []
        self._scene_of_articulation: list[int] = []
        grouped: dict[tuple, list[tuple]] = {}
        for number, (scene, system) in enumerate(zip(self.scenes, self.systems, strict=True)):
            signature, rows = self._number_bodies(number, scene, system)
            grouped.setdefault(signature, []).append((number, *rows))
        self._layouts = [_layout(signature, members) for signature, members in grouped.items()]
        for layout in self._layouts:
            size = len(self.systems[layout.scenes[0]].pack()) // 4
            if size != layout.packed_size:
                raise SimulatorError(
                    f"The physics engine packs {size} numbers a scene where {layout.packed_size} were expected; "
                    "this scene cannot be stepped in a batch. Set env.stepping=single."
                )
        count = len(self._bodies)
        dofs = max([a.dof for a in self._articulations], default=1)
        self._body_data = torch.zeros(count, _BODY)
        joints = (len(self._articulations), dofs)
        self._qpos, self._qvel, self._qf = torch.zeros(joints), torch.zeros(joints), torch.zeros(joints)
        self._qacc, self._target_qpos, self._target_qvel = torch.zeros(joints), torch.zeros(joints), torch.zeros(joints)
        self._force, self._torque = torch.zeros(count, 4), torch.zeros(count, 4)
        most_links = max([len(a.links) for a in self._articulations], default=1)
        self._joint_forces = torch.zeros(len(self._articulations), most_links, 6)
        self.cuda_rigid_body_data = self.cuda_rigid_dynamic_data = Buffer(self._body_data)
        self.link_data = Buffer(self._body_data, self._pull_link_velocities)
        self.cuda_articulation_qpos, self.cuda_articulation_qvel = Buffer(self._qpos), Buffer(self._qvel)
        self.cuda_articulation_qf = Buffer(self._qf)
        self.cuda_articulation_qacc = Buffer(self._qacc, self._pull_accelerations)
        self.cuda_articulation_target_qpos = Buffer(self._target_qpos)
        self.cuda_articulation_target_qvel = Buffer(self._target_qvel)
        self.cuda_rigid_body_force = self.cuda_rigid_dynamic_force = Buffer(self._force)
        self.cuda_rigid_body_torque = self.cuda_rigid_dynamic_torque = Buffer(self._torque)
        self.cuda_articulation_link_incoming_joint_forces = Buffer(self._joint_forces)
        self.pull()

    def _number_bodies(self, number: int, scene: sapien.Scene, system: physx.PhysxCpuSystem) -> tuple[tuple, tuple]:
        dynamic = list(system.rigid_dynamic_components)
        links = list(system.articulation_link_components)
        roots = [link for link in links if link.is_root]
        place = {entity: k for k, entity in enumerate(scene.entities)}
        first = len(self._bodies)
        for row, body in enumerate([*dynamic, *links], start=first):
            assign_row(body, row)
            self._bodies.append(body)
        body_rows = np.arange(first, len(self._bodies))
        row_of_link = {link: first + len(dynamic) + k for k, link in enumerate(links)}
        self._links += [(row_of_link[link], link) for link in links if not link.is_root]
        articulation_rows, root_rows = [], []
        for root in roots:
            articulation = root.articulation
            assign_row(articulation, len(self._articulations))
            articulation_rows.append(len(self._articulations))
            root_rows.append(row_of_link[root])
            self._articulations.append(articulation)
            self._joints.append(list(articulation.active_joints))
            self._scene_of_articulation.append(number)
        entities = tuple(place[body.entity] for body in [*dynamic, *links])
        signature = (len(place), entities, len(dynamic), tuple(root.articulation.dof for root in roots))
        return signature, (body_rows, articulation_rows, root_rows)

    def replace_scene(self, number: int, scene: sapien.Scene) -> None:
        """Go on with `scene`, which holds the same bodies in the same order."""
        self.scenes[number] = scene
        self.systems[number] = scene.physx_system
        self._contacts.forget()

    def drive(self, positions: Sequence[tuple[int, int]], velocities: Sequence[tuple[int, int]]) -> None:
        """Say which (articulation row, joint) targets the robots' controllers set, even to the value they have."""
        self._position_drives = [self._make_drive(row, joint, "set_drive_target") for row, joint in positions]
        self._velocity_drives = [self._make_drive(row, joint, "set_drive_velocity_target") for row, joint in velocities]

    def _make_drive(self, row: int, joint: int, setter: str) -> _Drive:
        return _Drive(row, joint, self._scene_of_articulation[row], getattr(self._joints[row][joint], setter))

    # -------------------------------------------------------------------------------------------------- simulation

    def step(self) -> None:
        """One physics step of the active scenes."""
        for number in np.flatnonzero(self.active).tolist():
            self.systems[number].step()
        self._stale = True
        self._contacts.forget()

    def pull(self) -> None:
        """Bring the buffers up to date with the scenes."""
        body, qpos, qvel = self._body_data.numpy(), self._qpos.numpy(), self._qvel.numpy()
        target_qpos, target_qvel = self._target_qpos.numpy(), self._target_qvel.numpy()
        for layout in self._layouts:
            count = len(layout.scenes)
            packed = np.frombuffer(b"".join([self.systems[s].pack() for s in layout.scenes]), dtype=np.float32)
            poses = np.frombuffer(b"".join([self.scenes[s].pack_poses() for s in layout.scenes]), dtype=np.float32)
            packed = packed.reshape(count, -1)
            poses = poses.reshape(count, -1, _POSE)[:, layout.entities]
            body[layout.body_rows, :_POSE] = poses[..., _FROM_PACKED[:_POSE]]
            dynamic = layout.dynamic_rows.shape[1]
            body[layout.dynamic_rows] = packed[:, : dynamic * _BODY].reshape(count, dynamic, _BODY)[..., _FROM_PACKED]
            for part in layout.articulated:
                rows, dof = part.rows, part.dof
                body[part.root_rows] = packed[:, part.root_at : part.root_at + _BODY][:, _FROM_PACKED]
                qpos[rows, :dof] = packed[:, part.qpos_at : part.qpos_at + dof]
                qvel[rows, :dof] = packed[:, part.qvel_at : part.qvel_at + dof]
                targets = packed[:, part.target_at : part.target_at + 2 * dof].reshape(count, dof, 2)
                target_qpos[rows, :dof], target_qvel[rows, :dof] = targets[..., 0], targets[..., 1]
        self._stale = False
        self._link_velocities_stale = True
        self._remember()

    def _remember(self) -> None:
        """Keep what the scenes hold, to find later what was written to the buffers."""
        self._known_body = self._body_data.numpy().copy()
        self._known_joints = [t.numpy().copy() for t in (self._qpos, self._qvel, self._target_qpos, self._target_qvel)]
        self._known_qf = self._qf.numpy().copy()

    def _pull_once(self) -> None:
        if self._stale:
            self.pull()

    def _pull_link_velocities(self) -> None:
        """The engine's bulk state has no velocities of inner links; read them one by one when somebody looks."""
        if not self._link_velocities_stale:
            return
        data = self._body_data.numpy()
        for row, link in self._links:
            data[row, 7:10] = link.linear_velocity
            data[row, 10:13] = link.angular_velocity
        rows = [row for row, _ in self._links]
        self._known_body[rows] = data[rows]
        self._link_velocities_stale = False

    def _pull_accelerations(self) -> None:
        data = self._qacc.numpy()
        for row, articulation in enumerate(self._articulations):
            data[row, : articulation.dof] = articulation.qacc

    def push(self) -> None:
        """Write the scenes whose rows differ from what the scenes hold."""
        body = self._body_data.numpy()
        joints = [t.numpy() for t in (self._qpos, self._qvel, self._target_qpos, self._target_qvel)]
        body_changed = (body != self._known_body).any(axis=1)
        joints_changed = np.zeros(len(self._articulations), dtype=bool)
        for now, known in zip(joints, self._known_joints, strict=True):
            joints_changed |= (now != known).any(axis=1)
        for layout in self._layouts:
            changed = body_changed[layout.body_rows].any(axis=1)
            for part in layout.articulated:
                changed |= joints_changed[part.rows]
            for member in np.flatnonzero(changed).tolist():
                self._unpack(layout, member, body, joints)
                self._stale = True
        self._push_joint_forces()
        if self._stale:
            self._remember()

    def _unpack(self, layout: _Layout, member: int, body: np.ndarray, joints: list[np.ndarray]) -> None:
        qpos, qvel, target_qpos, target_qvel = joints
        parts = [body[layout.dynamic_rows[member]][:, _TO_PACKED].ravel()]
        for part in layout.articulated:
            row, dof = part.rows[member], part.dof
            targets = np.stack([target_qpos[row, :dof], target_qvel[row, :dof]], axis=1)
            parts += [body[part.root_rows[member], _TO_PACKED], qpos[row, :dof], qvel[row, :dof], targets.ravel()]
        self.systems[layout.scenes[member]].unpack(np.concatenate(parts).astype(np.float32).tobytes())

    def _push_joint_forces(self) -> None:
        forces = self._qf.numpy()
        for row in np.flatnonzero((forces != self._known_qf).any(axis=1)).tolist():
            articulation = self._articulations[row]
            articulation.qf = forces[row, : articulation.dof]
            self._known_qf[row] = forces[row]

    def _push_targets(self, targets: torch.Tensor, known: np.ndarray, drives: list[_Drive], setter: str) -> None:
        """Set drive targets joint by joint: those a controller owns and those that somebody else changed."""
        changed = targets.numpy() != known
        values, active = targets.tolist(), self.active.tolist()
        for drive in drives:
            changed[drive.row, drive.joint] = False
            if active[drive.scene]:
                drive.set(values[drive.row][drive.joint])
        for row, joint in np.argwhere(changed).tolist():
            if active[self._scene_of_articulation[row]]:
                getattr(self._joints[row][joint], setter)(values[row][joint])
        known[:] = targets.numpy()

    def gpu_apply_articulation_target_position(self) -> None:
        self._push_targets(self._target_qpos, self._known_joints[2], self._position_drives, "set_drive_target")

    def gpu_apply_articulation_target_velocity(self) -> None:
        self._push_targets(self._target_qvel, self._known_joints[3], self._velocity_drives, "set_drive_velocity_target")

    def gpu_apply_rigid_dynamic_force(self) -> None:
        """Apply the forces in the force buffer at the centres of mass for one physics step, then clear it."""
        forces = self._force.numpy()
        for row in np.flatnonzero(forces.any(axis=1)).tolist():
            body = self._bodies[row]
            body.add_force_at_point(force=forces[row, :3], point=(body.entity_pose * body.cmass_local_pose).p)
        forces[:] = 0

    def gpu_apply_rigid_dynamic_torque(self) -> None:
        torques = self._torque.numpy()
        for row in np.flatnonzero(torques.any(axis=1)).tolist():
            self._bodies[row].add_force_torque(force=np.zeros(3, dtype=np.float32), torque=torques[row, :3])
        torques[:] = 0

    def gpu_fetch_articulation_link_incoming_joint_forces(self) -> None:
        data = self._joint_forces.numpy()
        for row, articulation in enumerate(self._articulations):
            forces = articulation.link_incoming_joint_forces
            data[row, : len(forces)] = forces

    def gpu_update_articulation_kinematics(self) -> None:
        """Nothing to do: the CPU engine moves links as soon as joint positions are written."""

    def sync_poses_gpu_to_cpu(self) -> None:
        """Nothing to do: the scenes are on the CPU."""

    gpu_apply_rigid_dynamic_data = push
    gpu_apply_articulation_qpos = push
    gpu_apply_articulation_qvel = push
    gpu_apply_articulation_qf = push
    gpu_apply_articulation_root_pose = push
    gpu_apply_articulation_root_velocity = push
    gpu_fetch_rigid_dynamic_data = _pull_once
    gpu_fetch_articulation_link_pose = _pull_once
    gpu_fetch_articulation_link_velocity = _pull_once
    gpu_fetch_articulation_qpos = _pull_once
    gpu_fetch_articulation_qvel = _pull_once
    gpu_fetch_articulation_qacc = _pull_once
    gpu_fetch_articulation_target_qpos = _pull_once
    gpu_fetch_articulation_target_qvel = _pull_once

    # ---------------------------------------------------------------------------------------------------- contacts

    def gpu_create_contact_pair_impulse_query(self, pairs: Sequence[tuple[Any, Any]]) -> PairImpulseQuery:
        return self._contacts.pair_query(pairs)

    def gpu_create_contact_body_impulse_query(self, bodies: Sequence[Any]) -> BodyImpulseQuery:
        return self._contacts.body_query(bodies)

    def gpu_query_contact_pair_impulses(self, query: PairImpulseQuery) -> None:
        query.cuda_impulses = Buffer(self._contacts.pair_impulses(query))

    def gpu_query_contact_body_impulses(self, query: BodyImpulseQuery) -> None:
        query.cuda_impulses = Buffer(self._contacts.body_impulses(query))


def _layout(signature: tuple, members: list[tuple]) -> _Layout:
    _, entities, dynamic, dofs = signature
    scenes = np.array([m[0] for m in members])
    body_rows = np.stack([m[1] for m in members])
    articulated, at = [], dynamic * _BODY
    for k, dof in enumerate(dofs):
        articulated.append(
            _Articulated(
                rows=np.array([m[2][k] for m in members]),
                root_rows=np.array([m[3][k] for m in members]),
                dof=dof,
                root_at=at,
                qpos_at=at + _BODY,
                qvel_at=at + _BODY + dof,
                target_at=at + _BODY + 2 * dof,
            )
        )
        at += _BODY + 4 * dof
    return _Layout(
        scenes=scenes,
        body_rows=body_rows,
        dynamic_rows=body_rows[:, :dynamic],
        entities=np.array(entities, dtype=np.int64),
        articulated=tuple(articulated),
        packed_size=at,
    )
