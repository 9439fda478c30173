"""Language models on text: tokenizers, rows of tokens, models without their cache, samples.

    tokenizer = text.load_tokenizer("tokenizer.json")
    model = text.without_cache("decoder.onnx")             as optimum or genai exported it
    rows = text.causal_lm_rows("train.jsonl", tokenizer, max_length=256)
    onnxtrain.generate_artifacts(model, loss=losses.CausalLMLoss(), …)
    trainer.fit(rows.arrays(text.LanguageInputs.of(model)))
    text.with_weights("decoder.onnx", trainer.state, "trained.onnx")

Nothing here needs torch; tokenizer files need the package ``tokenizers`` (``onnxtrain[text]``).
"""

from __future__ import annotations

from ..errors import TextError as TextError
from .cache import remove_cache as remove_cache
from .cache import without_cache as without_cache
from .documents import Document as Document
from .documents import read_documents as read_documents
from .encoder import sentence_encoder as sentence_encoder
from .generate import generate as generate
from .inputs import LanguageInputs as LanguageInputs
from .inputs import embedding_rows as embedding_rows
from .pairs import cosine_similarities as cosine_similarities
from .pairs import embed as embed
from .pairs import encoded as encoded
from .pairs import read_pairs as read_pairs
from .pairs import similarity_rows as similarity_rows
from .pairs import spearman as spearman
from .rows import IGNORED as IGNORED
from .rows import Rows as Rows
from .rows import causal_lm_rows as causal_lm_rows
from .rows import check_vocabulary as check_vocabulary
from .separate import separate_documents as separate_documents
from .separate import separated_model as separated_model
from .tokenizer import Tokenizer as Tokenizer
from .tokenizer import load_tokenizer as load_tokenizer
from .weights import with_weights as with_weights
