"""What every reader checks of the tensors it finds, whatever the format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ullage.base.errors import ModelFileError
from ullage.models.spec import RUNNABLE_ARCHITECTURES, ModelSpec, expected_tensors


def unsupported_architecture(path: Path, name: str) -> ModelFileError:
    return ModelFileError(
        f"{path}: architecture {name!r:.80} can't run here",
        hint=f"architectures that run: {', '.join(RUNNABLE_ARCHITECTURES)}",
    )


def match_tensors(
    path: Path,
    spec: ModelSpec,
    shapes: Mapping[str, tuple[int, ...]],
    stored_name: Callable[[str], str],
    ignored: Callable[[str], bool],
) -> dict[str, str]:
    """Canonical name → name in the file, in execution order.

    :param shapes: of all tensors in the file, by the file's names
    :param ignored: whether a tensor that the model doesn't need may be left unread
    :raises ModelFileError: a tensor is missing, has the wrong shape, or is one this architecture doesn't have
    """
    expected = expected_tensors(spec)
    names = {canonical: stored_name(canonical) for canonical in expected}
    missing = [name for name in names.values() if name not in shapes]
    if missing:
        raise ModelFileError(
            f"{path}: {len(missing)} tensors are missing, first {', '.join(missing[:3])}",
            hint="the file is incomplete, or its metadata describes another model",
        )
    for canonical, shape in expected.items():
        found = shapes[names[canonical]]
        if found != shape:
            raise ModelFileError(f"{path}: tensor {names[canonical]} has shape {found}, the metadata asks for {shape}")
    known = set(names.values())
    for name in shapes:
        if name not in known and not ignored(name):
            raise ModelFileError(
                f"{path}: tensor {name!r:.80} isn't part of a {spec.architecture} model",
                hint="the model differs from its architecture in a way that isn't supported",
            )
    return names
