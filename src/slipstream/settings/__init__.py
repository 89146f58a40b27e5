"""The settings of a run, as data: what a recipe returns, what the command line changes, what a run's store keeps."""

from slipstream.settings.configs import (
    DemonstrationsConfig,
    DispatchConfig,
    EvalConfig,
    HardwareConfig,
    ModelConfig,
    PricesConfig,
    RunConfig,
    SandboxConfig,
    TasksConfig,
    TaskSetConfig,
    TinkerConfig,
    TrainConfig,
    check_settings,
)

__all__ = [
    "DemonstrationsConfig",
    "DispatchConfig",
    "EvalConfig",
    "HardwareConfig",
    "ModelConfig",
    "PricesConfig",
    "RunConfig",
    "SandboxConfig",
    "TaskSetConfig",
    "TasksConfig",
    "TinkerConfig",
    "TrainConfig",
    "check_settings",
]
