"""Patterns by which families of byte-level tokenizers split a text before they merge bytes."""

from __future__ import annotations

_CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def _words(digits: str) -> str:
    return (
        rf"{_CONTRACTED}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}|"
        rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}"
    )


def _cased(digits: str, ending: str) -> str:
    """A pattern that splits words where lower case becomes upper case."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{lead}{_UPPER}*{_LOWER}+{ending}|{lead}{_UPPER}+{_LOWER}*{ending}|\p{{N}}{digits}|"
        rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}"
    )


GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3, QWEN2 = _words("{1,3}"), _words("")
GPT4O, TEKKEN = _cased("{1,3}", f"{_CONTRACTED}?"), _cased("", "")

# Patterns that split a text, one after the other.
PATTERNS: dict[str, tuple[str, ...]] = {
    "default": (
        r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]",
    ),
    "gpt2": (GPT2,),
    "digits": (r"\p{N}", GPT2),
    "llama3": (LLAMA3,),
    "qwen2": (QWEN2,),
    "gpt4o": (GPT4O,),
    "tekken": (TEKKEN,),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"),
    "deepseek3": (
        r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
        rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{_TAIL}",
    ),
    "bloom": (r" ?[^(\s|.,!?…。，、।۔،)]+",),
}  # fmt: skip

# ``tokenizer.ggml.pre`` of GGUF files.
GGUF: dict[str, str] = {
    name: pattern
    for pattern, names in {
        "default": "default",
        "gpt2": "gpt-2 phi-2 mpt olmo jais gigachat a.x-4.0 mellum modern-bert exaone4 roberta-bpe "
        "jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code trillion granite-docling",
        "digits": "smollm starcoder refact command-r codeshell exaone minerva-7b",
        "llama3": "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 dbrx "
        "smaug-bpe chatglm-bpe glm4",
        "qwen2": "qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan kormo",
        "gpt4o": "gpt-4o llama4 kanana2",
        "tekken": "tekken",
        "falcon": "falcon",
        "deepseek-coder": "deepseek-coder",
        "deepseek3": "deepseek-v3 hunyuan-dense",
        "bloom": "bloom poro-chat gpt3-finnish",
    }.items()
    for name in names.split()
}
