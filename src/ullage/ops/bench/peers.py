"""The engines that ours is compared with, each in a virtual environment of its own below one folder:
``openvino``, ``llamacpp``, ``vllm``. How a peer is fed is decided here; ``peer_driver.py`` runs in its environment.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ullage.base.errors import EngineError, ModelFileError
from ullage.models.open_model import open_model
from ullage.ops.bench.hf_export import export_folder
from ullage.ops.bench.subject import ANSWER_SECONDS, Launch, ProcessSubject, Subject

DRIVER = Path(__file__).with_name("peer_driver.py")


@dataclass(frozen=True, slots=True)
class PeerInput:
    """What the peers are given: the same as ours, in the form they read."""

    model: Path
    """A GGUF file, a Hugging Face folder, or for a dummy its ``config.json``."""
    is_dummy: bool
    hf_folder: Path | None
    """The model as a Hugging Face folder, where somebody has one."""
    scratch: Path
    """A folder for files that are made on the way."""
    opening: Mapping[str, Any]
    """First line of the conversation, without the model."""


def find_peers(folder: Path, given: PeerInput) -> dict[str, Launch]:
    """Launches of all peers whose environments are there, by name. A launch raises ``EngineError`` with the reason why
    the peer can't run this model.
    """
    peers: dict[str, tuple[str, Callable[[Path, PeerInput], Subject]]] = {
        "OpenVINO, u8 KV": ("openvino", partial(_launch_openvino, "OpenVINO, u8 KV", "u8")),
        "OpenVINO, bf16 KV": ("openvino", partial(_launch_openvino, "OpenVINO, bf16 KV", "bf16")),
        "llama.cpp": ("llamacpp", partial(_launch_llamacpp, "llama.cpp", None)),
        "llama.cpp, Q4_0": ("llamacpp", partial(_launch_llamacpp, "llama.cpp, Q4_0", "Q4_0")),
        "vLLM, bf16": ("vllm", partial(_launch_vllm, "vLLM, bf16")),
    }
    found = {name: (folder / place / "bin" / "python", launch) for name, (place, launch) in peers.items()}
    return {name: partial(launch, python, given) for name, (python, launch) in found.items() if python.exists()}


def _launch_openvino(name: str, kv_type: str, python: Path, given: PeerInput) -> Subject:
    return _start(name, "openvino", python, given, {"model": str(_gguf(name, given)), "kv_type": kv_type})


def _launch_llamacpp(name: str, file_type: str | None, python: Path, given: PeerInput) -> Subject:
    model = _gguf(name, given)
    if file_type is not None:
        converted = given.scratch / f"{model.stem}.{file_type}.gguf"
        if not converted.exists():
            _requantize(name, python, model, converted, file_type)
        model = converted
    return _start(name, "llamacpp", python, given, {"model": str(model)})


def _requantize(name: str, python: Path, model: Path, to: Path, file_type: str) -> None:
    command = [str(part) for part in (python, DRIVER, "requantize", model, to, file_type)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    if done.returncode:
        to.unlink(missing_ok=True)
        raise EngineError(f"{name}: it can't convert this file to {file_type}")


def _launch_vllm(name: str, python: Path, given: PeerInput) -> Subject:
    folder = given.hf_folder
    if given.is_dummy:
        folder = given.scratch / "dummy"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_bytes(given.model.read_bytes())
    elif folder is None:
        folder = given.model if given.model.is_dir() else _exported(name, given)
    return _start(name, "vllm", python, given, {"model": str(folder), "dummy": given.is_dummy})


def _exported(name: str, given: PeerInput) -> Path:
    folder = given.scratch / "bf16"
    if folder.exists():
        return folder
    folder.mkdir()
    model = open_model(given.model)
    try:
        export_folder(model, folder)
    except ModelFileError as error:
        raise EngineError(f"{name}: {error.message}") from error
    finally:
        model.close()
    return folder


def _gguf(name: str, given: PeerInput) -> Path:
    if given.is_dummy or given.model.is_dir():
        raise EngineError(f"{name}: it reads GGUF files, and this model isn't one")
    return given.model.resolve()


def _start(name: str, driver: str, python: Path, given: PeerInput, more: Mapping[str, Any]) -> Subject:
    return ProcessSubject(name, [str(python), str(DRIVER), driver], {**given.opening, **more})
