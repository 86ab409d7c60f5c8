"""Simplifies what is drawn of a compiled model, in place: software rendering costs by the triangle, not the pixel.

Vertices are merged within the cells of a grid, each group to the point that lies closest to the planes of its faces
(Lindstrom, "Out-of-core simplification of large polygonal models", SIGGRAPH 2000); vertices that face opposite ways are
kept apart, so that the two sides of a bowl's wall stay two. Texture coordinates and normals are taken from the nearest
original faces that look the same way. Textures of many megapixels, of which a policy's picture shows a fraction, are
averaged down; they make up most of a scene's graphics memory. Meshes that take part in collisions are left alone, so
physics does not change.
"""

from __future__ import annotations

import dataclasses
import hashlib

import mujoco
import numpy as np
from scipy.spatial import cKDTree

TARGET_FACES = 2000
TARGET_TEXELS = 1024  # along a texture's width
_ROUNDS = 6  # of fitting the cell's size to the target
_WELD = 1e-6  # metres
_STAY = 1e-3  # how strongly a merged vertex is drawn to its group's mean where the planes leave it free
_NORMAL_CANDIDATES = 12
_FACE_CANDIDATES = 16


@dataclasses.dataclass(frozen=True)
class _Mesh:
    """Corner data of a mesh of F triangles: points and normals [F, 3, 3], texture [F, 3, 2] or None."""

    points: np.ndarray
    normals: np.ndarray
    texture: np.ndarray | None


_cache: dict[bytes, _Mesh | None] = {}


def simplify_visual_meshes(model: mujoco.MjModel, target: int = TARGET_FACES) -> None:
    """Reduce every purely visual mesh of more than `target` faces to about that many; the arrays keep their size.

    Call it before the first MjrContext of the model is made.
    """
    colliding = (model.geom_contype != 0) | (model.geom_conaffinity != 0)
    in_collisions = set(model.geom_dataid[colliding].tolist())
    for mesh in range(model.nmesh):
        if mesh not in in_collisions and model.mesh_facenum[mesh] > target:
            _simplify(model, mesh, target)


def shrink_textures(model: mujoco.MjModel, target: int = TARGET_TEXELS) -> None:
    """Average every texture wider than `target` down to it, where its size divides evenly; arrays keep their size.

    Call it before the first MjrContext of the model is made.
    """
    for texture in range(model.ntex):
        width, height = int(model.tex_width[texture]), int(model.tex_height[texture])
        channels, start = int(model.tex_nchannel[texture]), int(model.tex_adr[texture])
        factor = width // target
        if factor < 2 or width % factor or height % factor:
            continue
        data = model.tex_data[start : start + width * height * channels]
        blocks = data.reshape(height // factor, factor, width // factor, factor, channels)
        small = blocks.mean(axis=(1, 3), dtype=np.float32).round().astype(np.uint8)
        model.tex_data[start : start + small.size] = small.reshape(-1)
        model.tex_width[texture], model.tex_height[texture] = width // factor, height // factor


def _simplify(model: mujoco.MjModel, mesh: int, target: int) -> None:
    original = _read(model, mesh)
    key = hashlib.sha256(original.points.tobytes() + target.to_bytes(4, "little")).digest()
    if key not in _cache:
        _cache[key] = _merge(original, target)
    simple = _cache[key]
    if simple is not None:
        _write(model, mesh, simple)


def _read(model: mujoco.MjModel, mesh: int) -> _Mesh:
    faces = slice(model.mesh_faceadr[mesh], model.mesh_faceadr[mesh] + model.mesh_facenum[mesh])
    points = model.mesh_vert[model.mesh_vertadr[mesh] + model.mesh_face[faces]]
    normals = model.mesh_normal[model.mesh_normaladr[mesh] + model.mesh_facenormal[faces]]
    texture = None
    if model.mesh_texcoordadr[mesh] >= 0:
        texture = model.mesh_texcoord[model.mesh_texcoordadr[mesh] + model.mesh_facetexcoord[faces]]
    return _Mesh(points, normals, texture)


def _write(model: mujoco.MjModel, mesh: int, simple: _Mesh) -> None:
    """Store corner data unshared; the simplified mesh must fit where the original was, which few meshes fail."""
    count = len(simple.points)
    corners = 3 * count
    room = min(model.mesh_vertnum[mesh], model.mesh_normalnum[mesh])
    if simple.texture is not None:
        room = min(room, model.mesh_texcoordnum[mesh])
    if corners > room or count > model.mesh_facenum[mesh]:
        return
    index = np.arange(corners).reshape(count, 3)
    face, vertex, normal = model.mesh_faceadr[mesh], model.mesh_vertadr[mesh], model.mesh_normaladr[mesh]
    model.mesh_vert[vertex : vertex + corners] = simple.points.reshape(-1, 3)
    model.mesh_normal[normal : normal + corners] = simple.normals.reshape(-1, 3)
    model.mesh_face[face : face + count] = index
    model.mesh_facenormal[face : face + count] = index
    if simple.texture is not None:
        texture = model.mesh_texcoordadr[mesh]
        model.mesh_texcoord[texture : texture + corners] = simple.texture.reshape(-1, 2)
        model.mesh_facetexcoord[face : face + count] = index
    model.mesh_facenum[mesh] = count
    model.mesh_vertnum[mesh] = corners


def _merge(original: _Mesh, target: int) -> _Mesh | None:
    """The simplified mesh, or None where merging does not help."""
    points = original.points.reshape(-1, 3).astype(np.float64)
    _, first, welded = np.unique(np.round(points / _WELD), axis=0, return_index=True, return_inverse=True)
    vertices, faces = points[first], welded.reshape(-1, 3)
    edges = vertices[faces[:, 1:]] - vertices[faces[:, :1]]
    cross = np.cross(edges[:, 0], edges[:, 1])
    area = 0.5 * np.linalg.norm(cross, axis=1)
    faces, cross, area = faces[area > 0], cross[area > 0], area[area > 0]
    if len(faces) <= target:
        return None
    facing = _facing(vertices, faces, cross)
    cell = float(np.sqrt(2.0 * area.sum() / target))  # a flat sheet has two triangles a cell
    best = None
    for _ in range(_ROUNDS):
        group, kept = _cluster(vertices, faces, facing, cell)
        if len(kept) <= target and (best is None or len(kept) > len(best[1])):
            best = group, kept
        if 0.85 * target <= len(kept) <= target:
            break
        cell *= float(np.clip(np.sqrt(len(kept) / (0.93 * target)), 0.5, 2.0))
    if best is None or not len(best[1]):
        return None
    group, kept = best
    placed = _representatives(vertices, faces, cross / (2.0 * area[:, None]), area, group)
    return _dress(placed[kept], original)


def _facing(vertices: np.ndarray, faces: np.ndarray, cross: np.ndarray) -> np.ndarray:
    """Which of the six axis directions each vertex faces most, int64 [V]."""
    normal = np.stack(
        [np.bincount(faces.reshape(-1), np.repeat(cross[:, i], 3), len(vertices)) for i in range(3)], axis=1
    )
    axis = np.abs(normal).argmax(axis=1)
    return 2 * axis + (normal[np.arange(len(normal)), axis] > 0)


def _cluster(vertices: np.ndarray, faces: np.ndarray, facing: np.ndarray, cell: float) -> tuple[np.ndarray, np.ndarray]:
    """The group of every vertex [V], and the faces [K, 3] between three different groups, each once."""
    cells = np.floor((vertices - vertices.min(axis=0)) / cell).astype(np.int64)
    width = cells.max(axis=0) + 1
    _, group = np.unique(
        ((cells[:, 0] * width[1] + cells[:, 1]) * width[2] + cells[:, 2]) * 6 + facing, return_inverse=True
    )
    merged = group[faces]
    a, b, c = merged.T
    merged = merged[(a != b) & (b != c) & (a != c)]
    # the same triangle may begin at any corner; opposite orientation is another triangle
    start = merged.argmin(axis=1)
    rolled = np.take_along_axis(merged, (start[:, None] + np.arange(3)) % 3, axis=1)
    return group, np.unique(rolled, axis=0)


def _representatives(
    vertices: np.ndarray, faces: np.ndarray, normals: np.ndarray, areas: np.ndarray, group: np.ndarray
) -> np.ndarray:
    """Per group, the point with the least area-weighted squared distance to the planes of its faces [G, 3]."""
    groups = int(group.max()) + 1
    counts = np.bincount(group, minlength=groups)[:, None]
    mean = np.stack([np.bincount(group, vertices[:, i], groups) for i in range(3)], axis=1) / counts
    outer = normals[:, :, None] * normals[:, None, :] * areas[:, None, None]
    matrix = np.zeros((groups, 3, 3))
    right = np.zeros((groups, 3))
    for corner in range(3):
        owner = group[faces[:, corner]]
        offset = np.einsum("fi,fi->f", normals, vertices[faces[:, 0]] - mean[owner])
        np.add.at(matrix, owner, outer)
        np.add.at(right, owner, normals * (offset * areas)[:, None])
    scale = np.trace(matrix, axis1=1, axis2=2)[:, None, None] + 1e-30
    shift = np.linalg.solve(matrix / scale + _STAY * np.eye(3), (right / scale[:, 0])[..., None])[..., 0]
    low = np.full((groups, 3), np.inf)
    high = np.full((groups, 3), -np.inf)
    np.minimum.at(low, group, vertices)
    np.maximum.at(high, group, vertices)
    return np.clip(mean + shift, low, high)


def _dress(points: np.ndarray, original: _Mesh) -> _Mesh:
    """Normals and texture for the corners of new triangles [F, 3, 3], from the nearest original faces."""
    across = np.cross(points[:, 1] - points[:, 0], points[:, 2] - points[:, 0])
    length = np.linalg.norm(across, axis=1)
    points, across = points[length > 0], across[length > 0] / length[length > 0, None]
    corners = original.points.reshape(-1, 3)
    _, near = cKDTree(corners).query(points.reshape(-1, 3), k=min(_NORMAL_CANDIDATES, len(corners)))
    candidates = original.normals.reshape(-1, 3)[near]
    aligned = np.einsum("cki,ci->ck", candidates, np.repeat(across, 3, axis=0)).argmax(axis=1)
    normals = candidates[np.arange(len(near)), aligned].reshape(-1, 3, 3)
    if original.texture is None:
        return _Mesh(points, normals, None)
    _, near = cKDTree(original.points.mean(axis=1)).query(
        points.mean(axis=1), k=min(_FACE_CANDIDATES, len(corners) // 3)
    )
    looks = np.einsum("fki,fi->fk", original.normals[near, 0], across)
    # the nearest one that looks roughly the same way
    face = near[np.arange(len(near)), (looks > 0.5).argmax(axis=1)]
    return _Mesh(points, normals, _extrapolate(points, original.points[face], original.texture[face]))


def _extrapolate(points: np.ndarray, triangle: np.ndarray, texture: np.ndarray) -> np.ndarray:
    """Texture coordinates [F, 3, 2] at `points` [F, 3, 3], continuing each original triangle's linear map."""
    one, two = triangle[:, 1] - triangle[:, 0], triangle[:, 2] - triangle[:, 0]
    d11, d12, d22 = (np.einsum("fi,fi->f", a, b)[:, None] for a, b in ((one, one), (one, two), (two, two)))
    determinant = d11 * d22 - d12 * d12
    determinant[np.abs(determinant) < 1e-18] = np.inf
    offset = points - triangle[:, :1]
    p1, p2 = np.einsum("fci,fi->fc", offset, one), np.einsum("fci,fi->fc", offset, two)
    first = np.clip((d22 * p1 - d12 * p2) / determinant, -3.0, 3.0)[..., None]
    second = np.clip((d11 * p2 - d12 * p1) / determinant, -3.0, 3.0)[..., None]
    start = texture[:, None, 0]
    return start + first * (texture[:, None, 1] - start) + second * (texture[:, None, 2] - start)
