"""The recurrent language models, with their presets."""

from harness.catalog.spec import ModelSpec, Preset
from harness.records.run import DataKind

_RNN = ModelSpec(
    key="rnn",
    title="RNN",
    summary="Elman's plain recurrent network, predicting text byte by byte.",
    accepts=DataKind.TEXT,
    default_data="stdlib-text",
    builder="harness.models.recurrent:build_rnn",
    is_recurrent=True,
    is_unrolled=True,
    presets=(
        Preset(
            name="laptop",
            title="Laptop",
            params={"width": 96, "layers": 1},
            settings={"batch_size": 16, "sequence_length": 64, "learning_rate": 0.002},
            parameters=68_032,
            scale="One layer of 96 on 64 bytes: about ten milliseconds per step on two CPU cores.",
        ),
        Preset(
            name="workstation",
            title="Workstation",
            params={"width": 512, "layers": 2},
            settings={"batch_size": 64, "sequence_length": 256, "learning_rate": 0.001},
            parameters=1_313_024,
            scale="Two layers of 512 on 256 bytes: for any GPU with 4 GiB.",
        ),
        Preset(
            name="h200",
            title="H200",
            params={"width": 2048, "layers": 4},
            settings={"batch_size": 256, "sequence_length": 1024, "learning_rate": 0.0003},
            parameters=34_619_648,
            scale="Four layers of 2,048 on 1,024 bytes: about 20 GiB of activations, for an H200.",
        ),
    ),
)

_LSTM = ModelSpec(
    key="lstm",
    title="LSTM",
    summary="Long short-term memory, predicting text byte by byte.",
    accepts=DataKind.TEXT,
    default_data="stdlib-text",
    builder="harness.models.recurrent:build_lstm",
    is_recurrent=True,
    presets=(
        Preset(
            name="laptop",
            title="Laptop",
            params={"width": 96, "layers": 1},
            settings={"batch_size": 16, "sequence_length": 64, "learning_rate": 0.005},
            parameters=123_904,
            scale="One layer of 96 on 64 bytes: about ten milliseconds per step on two CPU cores.",
        ),
        Preset(
            name="workstation",
            title="Workstation",
            params={"width": 512, "layers": 2},
            settings={"batch_size": 64, "sequence_length": 256, "learning_rate": 0.001},
            parameters=4_464_896,
            scale="Two layers of 512 on 256 bytes: for any GPU with 4 GiB.",
        ),
        Preset(
            name="h200",
            title="H200",
            params={"width": 2048, "layers": 4},
            settings={"batch_size": 256, "sequence_length": 1024, "learning_rate": 0.0003},
            parameters=135_332_096,
            scale="Four layers of 2,048 on 1,024 bytes: tens of GiB of activations, for an H200.",
        ),
    ),
)

_GRU = ModelSpec(
    key="gru",
    title="GRU",
    summary="Gated recurrent units, predicting text byte by byte.",
    accepts=DataKind.TEXT,
    default_data="stdlib-text",
    builder="harness.models.recurrent:build_gru",
    is_recurrent=True,
    is_unrolled=True,
    presets=(
        Preset(
            name="laptop",
            title="Laptop",
            params={"width": 96, "layers": 1},
            settings={"batch_size": 16, "sequence_length": 64, "learning_rate": 0.005},
            parameters=105_280,
            scale="One layer of 96 on 64 bytes: about ten milliseconds per step on two CPU cores.",
        ),
        Preset(
            name="workstation",
            title="Workstation",
            params={"width": 512, "layers": 2},
            settings={"batch_size": 64, "sequence_length": 256, "learning_rate": 0.001},
            parameters=3_414_272,
            scale="Two layers of 512 on 256 bytes: for any GPU with 4 GiB.",
        ),
        Preset(
            name="h200",
            title="H200",
            params={"width": 2048, "layers": 4},
            settings={"batch_size": 256, "sequence_length": 1024, "learning_rate": 0.0003},
            parameters=101_761_280,
            scale="Four layers of 2,048 on 1,024 bytes: tens of GiB of activations, for an H200.",
        ),
    ),
)

RECURRENT = (_RNN, _LSTM, _GRU)
