"""Give words the vectors of a file: `mx.contrib.text.embedding`."""

from __future__ import annotations

import logging
import warnings
from array import array as packed
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from weft.errors import UsageError
from weft.mx.arrays import nd
from weft.mx.arrays.ndarray import NDArray
from weft.mx.contrib.text import vocab
from weft.mx.contrib.text.vocab import UNKNOWN, Vocabulary

__all__ = [
    "CompositeEmbedding",
    "CustomEmbedding",
    "FastText",
    "GloVe",
    "TokenEmbedding",
    "create",
    "get_pretrained_file_names",
    "register",
    "vocab",
]

GLOVE = """
42B.300d 6B.50d 6B.100d 6B.200d 6B.300d 840B.300d
twitter.27B.25d twitter.27B.50d twitter.27B.100d twitter.27B.200d
""".split()  # noqa: SIM905  # words in lines read better than a column of them
# The languages of fastText's files, as Wikipedia abbreviates them, and those of its files in one space.
LANGUAGES = """
aa ab ace ady af ak als am ang an arc ar arz ast as av ay azb az bar bat_smg ba bcl be bg bh bi bjn bm bn bo bpy br bs
bug bxr ca cbk_zam cdo ceb ce cho chr ch chy ckb co crh cr csb cs cu cv cy da de diq dsb dv dz ee el eml en eo es et eu
ext fa ff fiu_vro fi fj fo frp frr fr fur fy gag gan ga gd glk gl gn gom got gu gv hak ha haw he hif hi ho hr hsb ht hu
hy hz ia id ie ig ii ik ilo io is it iu jam ja jbo jv kaa kab ka kbd kg ki kj kk kl km kn koi ko krc kr ksh ks ku kv kw
ky lad la lbe lb lez lg lij li lmo ln lo lrc ltg lt lv mai map_bms mdf mg mhr mh min mi mk ml mn mo mrj mr ms mt mus mwl
my myv mzn nah nap na nds_nl nds ne new ng nl nn no nov nrm nso nv ny oc olo om or os pag pam pap pa pcd pdc pfl pih pi
pl pms pnb pnt ps pt qu rm rmy rn roa_rup roa_tara ro rue ru rw sah sa scn sco sc sd se sg sh simple si sk sl sm sn so
sq srn sr ss stq st su sv sw szl ta tcy tet te tg th ti tk tl tn to tpi tr ts tt tum tw ty tyv udm ug uk ur uz vec vep
ve vi vls vo war wa wo wuu xal xh xmf yi yo za zea zh_classical zh_min_nan zh zh_yue zu
""".split()  # noqa: SIM905  # words in lines read better than a column of them
ALIGNED = "ar bg ca cs da de el en es et fi fr he hr hu id it mk nl no pl pt ro ru sk sl sv tr uk vi".split()  # noqa: SIM905
FOLDER = Path("~/.mxnet/embeddings")
REGISTERED: dict[str, type[TokenEmbedding]] = {}


def register(embedding_cls: type[TokenEmbedding]) -> type[TokenEmbedding]:
    """Let `create` find a class by its name."""
    REGISTERED[embedding_cls.__name__.lower()] = embedding_cls
    return embedding_cls


def create(embedding_name: str, **kwargs: Any) -> TokenEmbedding:
    """An embedding of a registered class, such as "glove"."""
    found = REGISTERED.get(embedding_name.lower())
    if found is None:
        raise AssertionError(f"{embedding_name} is not registered. Please register with token embedding.register first")
    return found(**kwargs)


def get_pretrained_file_names(embedding_name: str | None = None) -> Any:
    """The files that an embedding can be read from, or those of all."""
    if embedding_name is None:
        return {name: list(kind.files) for name, kind in REGISTERED.items()}
    if embedding_name not in REGISTERED:
        raise KeyError(
            f"Cannot find `embedding_name` {embedding_name}. Use "
            "`get_pretrained_file_names(embedding_name=None).keys()` to get all the valid embedding names."
        )
    return list(REGISTERED[embedding_name].files)


class TokenEmbedding(Vocabulary):
    """A vocabulary whose words have vectors."""

    files: ClassVar[Sequence[str]] = ()
    _vec_len = 0
    _idx_to_vec: Any = None

    @property
    def vec_len(self) -> int:
        """How long the vectors are."""
        return self._vec_len

    @property
    def idx_to_vec(self) -> Any:
        """The vectors, a row a word."""
        return self._idx_to_vec

    def _read(
        self,
        path: Path,
        delimiter: str,
        encoding: str,
        unknown: Callable[..., NDArray],
        vocabulary: Any,
    ) -> None:
        """Have the words and vectors of a file, or those of a vocabulary's words."""
        if not path.is_file():
            raise ValueError("`pretrained_file_path` must be a valid path to the pre-trained token embedding file.")
        logging.info("Loading pre-trained token embedding vectors from %s", path)  # noqa: LOG015  # as MXNet does
        words, vectors, first = _lines_read(path, delimiter, encoding, self.unknown_token)
        start = len(self)
        self._idx_to_token += words
        self._token_to_idx.update({word: start + place for place, word in enumerate(words)})
        self._vec_len = vectors.shape[1]
        # Of reserved words the file says nothing.
        self._idx_to_vec = nd.array(np.concatenate([np.zeros((start, self._vec_len), np.float32), vectors]))
        self._idx_to_vec[UNKNOWN] = unknown(shape=self._vec_len) if first is None else nd.array(first)
        if vocabulary is not None:
            if not isinstance(vocabulary, Vocabulary):
                raise AssertionError(
                    "The argument `vocabulary` must be an instance of mxnet.contrib.text.vocab.Vocabulary."
                )
            self._take(vocabulary, [self])

    def _take(self, vocabulary: Vocabulary, embeddings: Sequence[TokenEmbedding]) -> None:
        """Have the words of a vocabulary, with their vectors in some embeddings side by side."""
        words = vocabulary.idx_to_token
        rows = [nd.concat(each.idx_to_vec[0:1], *each._vectors(words[1:]), dim=0) for each in embeddings]
        self._idx_to_vec = nd.concat(*rows, dim=1)
        self._vec_len = sum(each.vec_len for each in embeddings)
        self._token_to_idx, self._idx_to_token = dict(vocabulary.token_to_idx), list(words)
        self._unknown_token, self._reserved_tokens = vocabulary.unknown_token, vocabulary.reserved_tokens

    def _vectors(self, words: list[str]) -> list[NDArray]:
        """The vectors of some words as one array, if there are any."""
        return [self.get_vecs_by_tokens(words)] if words else []

    def get_vecs_by_tokens(self, tokens: Any, lower_case_backup: bool = False) -> NDArray:
        """The vector of a word, or those of a list; perhaps those of words in small letters for unknown ones."""
        listed = tokens if isinstance(tokens, list) else [tokens]
        known = self._token_to_idx
        places = [
            known.get(token, known.get(token.lower(), UNKNOWN) if lower_case_backup else UNKNOWN) for token in listed
        ]
        rows: NDArray = nd.Embedding(nd.array(places, dtype="int64"), self._idx_to_vec, *self._idx_to_vec.shape)
        return rows if isinstance(tokens, list) else rows[0]

    def update_token_vectors(self, tokens: Any, new_vectors: Any) -> None:
        """Give a word another vector, or some words other ones."""
        if self._idx_to_vec is None:
            raise AssertionError("The property `idx_to_vec` has not been properly set.")
        listed = tokens if isinstance(tokens, list) else [tokens]
        axes = new_vectors.ndim if isinstance(new_vectors, NDArray) else 0
        if len(listed) == 1 and axes not in (1, 2):
            raise AssertionError("`new_vectors` must be a 1-D or 2-D NDArray if `tokens` is a singleton.")
        if len(listed) > 1 and axes != 2:
            raise AssertionError("`new_vectors` must be a 2-D NDArray if `tokens` is a list of multiple strings.")
        rows = new_vectors.expand_dims(axis=0) if axes == 1 else new_vectors
        if rows.shape != (len(listed), self._vec_len):
            raise AssertionError(
                "The length of new_vectors must be equal to the number of tokens and the width of"
                "new_vectors must be equal to the dimension of embeddings of the glossary."
            )
        for token in listed:
            if token not in self._token_to_idx:
                raise ValueError(
                    f"Token {token} is unknown. To update the embedding vector for an unknown token, please specify "
                    f"it explicitly as the `unknown_token` {self._idx_to_token[UNKNOWN]} in `tokens`. This is to "
                    "avoid unintended updates."
                )
        self._idx_to_vec[nd.array([self._token_to_idx[token] for token in listed])] = rows


def _lines_read(path: Path, delimiter: str, encoding: str, unknown: str) -> tuple[list[str], Any, list[float] | None]:
    """The words of a file, their vectors, and the vector of the unknown word if it has one."""
    words: dict[str, None] = {}
    elements, width = packed("f"), 0
    first: list[float] | None = None
    with path.open(encoding=encoding) as lines:
        for number, line in enumerate(lines, 1):
            word, *texts = line.rstrip().split(delimiter)
            if not texts:
                raise AssertionError(
                    f"At line {number} of the pre-trained text embedding file: the data format of the pre-trained "
                    f"token embedding file {path} is unexpected."
                )
            vector = [float(text) for text in texts]
            if word == unknown and first is None:
                first = vector
            elif word in words or word == unknown:
                warnings.warn(
                    f"At line {number} of the pre-trained token embedding file: the embedding vector for token {word} "
                    "has been loaded and a duplicate embedding for the  same token is seen and skipped.",
                    stacklevel=5,
                )
            elif len(vector) == 1:
                warnings.warn(
                    f"At line {number} of the pre-trained text embedding file: token {word} with 1-dimensional vector "
                    f"{vector} is likely a header and is skipped.",
                    stacklevel=5,
                )
            elif width and len(vector) != width:
                raise AssertionError(
                    f"At line {number} of the pre-trained token embedding file: the dimension of token {word} is "
                    f"{len(vector)} but the dimension of previous tokens is {width}. Dimensions of all the tokens must "
                    "be the same."
                )
            else:
                width = len(vector)
                words[word] = None
                elements.extend(vector)
    return list(words), np.frombuffer(elements, dtype=np.float32).reshape(-1, width), first


class _PublishedEmbedding(TokenEmbedding):
    """Vectors that others computed, of a file that is on this machine."""

    standard = ""

    def __init__(
        self,
        pretrained_file_name: str | None = None,
        embedding_root: str | Path = FOLDER,
        init_unknown_vec: Callable[..., NDArray] = nd.zeros,
        vocabulary: Vocabulary | None = None,
        **given: Any,
    ) -> None:
        file, name = pretrained_file_name or self.standard, type(self).__name__.lower()
        if file not in self.files:
            raise KeyError(
                f"Cannot find pretrained file {file} for token embedding {name}. Valid pretrained files for embedding "
                f"{name}: {', '.join(self.files)}"
            )
        super().__init__(**given)
        path = Path(embedding_root).expanduser() / name / file
        if not path.is_file():
            raise UsageError(
                f"the vectors {file} are not on this machine",
                where=str(path),
                why="weft.mx downloads nothing, where MXNet would",
                fix="put the file there, or read one from elsewhere: text.embedding.CustomEmbedding(path)",
            )
        self._read(path, " ", "utf8", init_unknown_vec, vocabulary)


@register
class GloVe(_PublishedEmbedding):
    """Vectors of Stanford's GloVe."""

    files = tuple(f"glove.{part}.txt" for part in GLOVE)
    standard = "glove.840B.300d.txt"


@register
class FastText(_PublishedEmbedding):
    """Vectors of Facebook's fastText."""

    files = (
        "crawl-300d-2M.vec",
        *(f"wiki.{code}.vec" for code in LANGUAGES),
        *(f"wiki.multi.{code}.vec" for code in ALIGNED),
        *("wiki-news-300d-1M-subword.vec", "wiki-news-300d-1M.vec"),
    )
    standard = "wiki.simple.vec"


class CustomEmbedding(TokenEmbedding):
    """Vectors of a file of one's own: a line a word, the word first."""

    def __init__(
        self,
        pretrained_file_path: str | Path,
        elem_delim: str = " ",
        encoding: str = "utf8",
        init_unknown_vec: Callable[..., NDArray] = nd.zeros,
        vocabulary: Vocabulary | None = None,
        **given: Any,
    ) -> None:
        super().__init__(**given)
        self._read(Path(pretrained_file_path).expanduser(), elem_delim, encoding, init_unknown_vec, vocabulary)


class CompositeEmbedding(TokenEmbedding):
    """The words of a vocabulary, with their vectors in several embeddings one behind the other."""

    def __init__(self, vocabulary: Vocabulary, token_embeddings: TokenEmbedding | list[TokenEmbedding]) -> None:
        super().__init__()
        if not isinstance(vocabulary, Vocabulary):
            raise AssertionError(  # noqa: TRY004  # MXNet's
                "The argument `vocabulary` must be an instance of mxnet.contrib.text.indexer.Vocabulary."
            )
        listed = token_embeddings if isinstance(token_embeddings, list) else [token_embeddings]
        for each in listed:
            if not isinstance(each, TokenEmbedding):
                raise AssertionError(  # noqa: TRY004  # MXNet's
                    "The argument `token_embeddings` must be an instance or a list of instances of "
                    "`mxnet.contrib.text.embedding.TextEmbedding` whose embedding vectors will be"
                    "loaded or concatenated-then-loaded to map to the indexed tokens."
                )
        self._take(vocabulary, listed)
