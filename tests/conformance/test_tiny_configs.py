"""Configurations scaled down by the names of their attributes."""

from __future__ import annotations

from typing import Any, ClassVar

from conformance.lists.tiny_configs import HEADS, LAYERS, SPREAD, VOCABULARY, WIDTH, tiny


class Config:
    """What the rules need to know of a configuration of transformers."""

    model_type = "made up"
    attribute_map: ClassVar[dict[str, str]] = {}

    def __init__(self, **values: Any) -> None:
        self.hidden_size, self.num_attention_heads, self.num_key_value_heads = 4096, 32, 8
        self.num_hidden_layers, self.vocab_size, self.pad_token_id = 40, 32000, 31999
        self.depths, self.hidden_sizes, self.initializer_range = (
            [3, 3, 9, 3],
            [96, 192, 384, 768],
            0.02,
        )
        self.layer_types = ["local", "local", "global"] * 13 + ["local"]
        self.use_cache, self.dropout = True, 0.1
        self.__dict__.update(values)

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def to_diff_dict(self) -> dict[str, Any]:
        return self.to_dict()


class Pair(Config):
    """Two configurations in one."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.text_config = Config(**values.get("text_config", {"hidden_act": "gelu"}))


def test_sizes_become_small_and_fit_together() -> None:
    config = tiny(Config, "made up")
    assert config.hidden_size == WIDTH
    assert (config.num_attention_heads, config.num_key_value_heads) == (HEADS, HEADS // 2)
    assert config.num_hidden_layers == LAYERS
    assert config.pad_token_id < config.vocab_size == VOCABULARY
    assert config.depths == [1, 1, 1, 1]
    assert config.hidden_sizes == sorted(config.hidden_sizes)
    assert config.initializer_range == SPREAD


def test_each_kind_of_layer_stays() -> None:
    assert tiny(Config, "made up").layer_types == ["local", "global"]


def test_what_there_is_for_each_layer_is_cut_with_the_layers() -> None:
    class Sources(Config):
        def __init__(self, **values: Any) -> None:
            super().__init__()
            self.sources = list(range(40))
            self.__dict__.update(values)

    assert tiny(Sources, "made up").sources == list(range(LAYERS))


def test_a_backbone_has_the_stages_that_are_read() -> None:
    class Backbone(Config):
        def __init__(self, **values: Any) -> None:
            super().__init__()
            self.stage_names = ["stem", *(f"stage{n}" for n in range(1, 41))]
            self.out_features = ["stage10", "stage20", "stage30", "stage40"]
            self.__dict__.update(values)

    config = tiny(Backbone, "made up")
    assert config.num_hidden_layers == 4
    assert config.out_features == ["stage1", "stage2", "stage3", "stage4"]


def test_equal_numbers_of_heads_stay_equal() -> None:
    class Plain(Config):
        def __init__(self, **values: Any) -> None:
            super().__init__(**{"num_key_value_heads": 32, **values})

    config = tiny(Plain, "made up")
    assert config.num_key_value_heads == config.num_attention_heads


def test_parts_are_scaled_and_keep_what_differs_from_their_defaults() -> None:
    part = tiny(Pair, "made up").text_config
    assert part.hidden_size == WIDTH
    assert part.hidden_act == "gelu"
    assert not part.use_cache
