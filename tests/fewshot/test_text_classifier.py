"""TextClassifier: the manners of FewShotClassifier, for sentences."""

import csv
import html
import re
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from e3bm import E3BMClassifier, FewShotClassifier, TextClassifier
from e3bm.errors import CheckpointError, DataError, SettingsError
from e3bm.fewshot.extractor import BackboneOrigin
from e3bm.fewshot.prior.file import load_prior
from e3bm.fewshot.prior.shipped import SHIPPED, TRUST_BY_KIND
from e3bm.fewshot.text import encoder as text_encoder
from e3bm.fewshot.text.encoder import MINILM, WORDLLAMA, choose_encoder
from e3bm.fewshot.trust import TrustPrior
from e3bm.runs.folder.files import read_json
from photo_models import support, unfitted

TOPICS = {
    "food": ["The soup needs salt.", "Bake the bread for an hour.", "She peeled two onions."],
    "sport": ["He scored in the last minute.", "The team lost the match.", "They trained for the marathon."],
    "weather": ["It will rain tomorrow.", "The storm brought snow.", "A sunny day with little wind."],
}
NEW = {
    "food": "Fry the onions with butter.",
    "sport": "The match ended in a draw.",
    "weather": "Snow and wind at night.",
}


def letters(texts):
    """An encoder of one's own: how often each letter occurs."""
    return np.array([[text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts], float)


@pytest.fixture(scope="module")
def model():
    pytest.importorskip("wordllama")
    return TextClassifier().fit(TOPICS)


def test_topics_of_new_sentences(model):
    found = model.predict(list(NEW.values()))
    assert [one.label for one in found] == list(NEW)
    assert model.predict(NEW["food"]) == found[0]
    assert list(found.names) == list(NEW.values())


def test_every_form_of_input_gives_the_same_fit(model, tmp_path):
    listed = [(text, name) for name, texts in TOPICS.items() for text in texts]
    texts, labels = zip(*listed, strict=True)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *listed])
    others = [TextClassifier().fit(texts, labels), TextClassifier().fit(tmp_path / "t.csv")]
    assert all(other.to_bytes() == model.to_bytes() for other in others)


def test_features_do_not_depend_on_neighbours(model):
    texts = [text for some in TOPICS.values() for text in some]
    assert np.array_equal(model.features(texts), np.concatenate([model.features(text) for text in texts]))


def test_it_is_the_mean_of_the_packages_own_vectors(model):
    """Equal to what the package's own inference gives, up to rounding of float16 sums."""
    import wordllama
    from tokenizers import Tokenizer

    folder = text_encoder.Path(wordllama.__file__).parent
    vectors = text_encoder.safetensors.numpy.load_file(folder / text_encoder.WEIGHTS)["embedding.weight"]
    own = wordllama.WordLlamaInference(vectors, Tokenizer.from_file(str(folder / text_encoder.TOKENISER)))
    texts = list(NEW.values())
    assert np.allclose(model.features(texts), own.embed(texts, norm=False), atol=1e-3)


def test_classes_change_and_models_are_kept(model, tmp_path):
    mine = TextClassifier.from_bytes(model.to_bytes())
    mine.add_class("music", ["The violin was out of tune.", "She sings in a choir."])
    assert mine.predict("He plays the violin.").label == "music"
    mine.add_shots("music", "A concert for piano.")
    mine.correct("The choir won the cup.", "sport")
    assert mine.counts == {"food": 3, "music": 3, "sport": 4, "weather": 3}
    mine.forget_class("music")
    mine.save(tmp_path / "t.e3bm")
    loaded = TextClassifier.load(tmp_path / "t.e3bm")
    assert loaded.predict(NEW["sport"]) == mine.predict(NEW["sport"])
    (suggested,) = loaded.suggest(["The soup needs pepper.", "Parliament passed the law."], 1)
    assert suggested.name == "Parliament passed the law."
    assert loaded.influences(NEW["food"])[0].label == "food"


def test_sentences_have_no_small_pictures():
    with pytest.raises(SettingsError, match="There are no small pictures of sentences"):
        TextClassifier(letters).fit(TOPICS, small_pictures=True)


def test_evaluation_has_no_pictures_and_says_sentences():
    mine = TextClassifier(letters).fit({**TOPICS, "food": [*TOPICS["food"], "The soup and/or the bread."]})
    wrong = {**NEW, "sport": NEW["food"]}
    found = mine.evaluate([*wrong.values(), "The law was passed."], [*wrong, "politics"])
    assert found.strangers == ("politics",)
    assert found.thumbnails == {}
    page = found.to_html()
    assert not re.search("photo|<img|class='nopicture'", page, re.IGNORECASE)
    assert "Sentences to look at" in page
    assert "sentences of 3 classes right" in str(found)
    assert found.as_json()["sentences"] == 4
    labelled = [part.name for one in found.mistakes for part in one.influences]
    assert labelled
    for name in labelled:  # whole, even where it has a slash
        assert html.escape(name) in page
    with pytest.raises(DataError, match="No sentence belongs to a class that the model knows"):
        mine.evaluate(["x"], ["y"])


def test_an_encoder_of_ones_own(tmp_path):
    mine = TextClassifier(letters).fit(TOPICS)
    mine.save(tmp_path / "own.e3bm")
    with pytest.raises(CheckpointError, match="pass it again"):
        TextClassifier.load(tmp_path / "own.e3bm")
    loaded = TextClassifier.load(tmp_path / "own.e3bm", encoder=letters)
    assert loaded.predict(NEW["food"]) == mine.predict(NEW["food"])


def test_models_of_photos_and_of_sentences_are_told_apart(tmp_path):
    unfitted().fit(support()).save(tmp_path / "photos.e3bm")
    TextClassifier(letters).fit(TOPICS).save(tmp_path / "texts.e3bm")
    with pytest.raises(CheckpointError, match="FewShotClassifier"):
        TextClassifier.load(tmp_path / "photos.e3bm")
    with pytest.raises(CheckpointError, match="TextClassifier"):
        FewShotClassifier.load(tmp_path / "texts.e3bm")


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([" "], "Sentence 1 cannot be used: it is empty"),
        (["ok", 3], "Sentence 2 cannot be used: it is of type int"),
        (["x" * 200_000], "200,000 characters"),
        ([], "No sentence was given"),
    ],
)
def test_what_cannot_be_read_is_a_sentence(texts, words):
    with pytest.raises(DataError, match=words):
        TextClassifier(letters).fit(TOPICS).features(texts)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"food": ["soup"]}, "A classifier needs sentences of two or more classes; found only 'food'."),
        ({"food": ["soup"], "sport": []}, "Class 'sport' has no sentence; add one or more, or leave the class out."),
        ({"food": ["soup"], "sport": ["soup"]}, "The same sentence is in class 'food'"),
        (
            {"food": ["soup"], "sport": ["x", " "]},
            "sport #2 cannot be used: it is empty. Remove or replace it, or continue without it (skip_unreadable=True)",
        ),
        ({"food": ["soup"], "sport": [None]}, "sport #1 cannot be used: it is of type NoneType, expected a string."),
        (["soup"], "A list of sentences needs a label for each: fit(sentences, labels)."),
    ],
)
def test_errors_speak_of_sentences(source, words):
    with pytest.raises(DataError) as caught:
        TextClassifier(letters).fit(source)
    assert words in str(caught.value)
    assert "photo" not in str(caught.value)


def test_questions_that_are_no_sentences():
    model = TextClassifier(letters).fit({"food": ["soup", "bread"], "sport": ["match", "goal"]})
    for asked in (None, 3):
        with pytest.raises(DataError, match="A sentence is a string, or give a list of them; found"):
            model.predict(asked)
    assert model.predict(["soup"]).to_frame().index.name == "text"


def test_notes_speak_of_sentences():
    notes = TextClassifier(letters).fit({"food": ["soup"], "sport": ["match", "match"]}).notes
    assert any("'food' has a single sentence" in note for note in notes)
    assert any("has the same sentence more than once" in note for note in notes)


def test_an_encoder_that_gives_nonsense_is_named():
    with pytest.raises(DataError, match="for 9 sentences"):
        TextClassifier(lambda texts: np.zeros(3)).fit({"a": [f"a{n}" for n in range(9)], "b": ["b"]})
    with pytest.raises(SettingsError, match="An encoder is 'wordllama', 'minilm'"):
        TextClassifier("bert")
    with pytest.raises(DataError, match="columns text and label"):
        TextClassifier(letters).fit("there is no such table")


def test_without_wordllama_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(text_encoder, "find_spec", lambda name: None)
    text_encoder.wordllama_extractor.cache_clear()
    with pytest.raises(SettingsError, match=r"pip install .*wordllama"):
        TextClassifier()
    text_encoder.minilm_extractor.cache_clear()
    with pytest.raises(SettingsError, match=r"pip install .*minilm"):
        TextClassifier("minilm")
    text_encoder.wordllama_extractor.cache_clear()


def test_all_numbers_by_kind_were_fitted_with_the_learned_parts_of_the_shipped_prior():
    """To the last bit; numbers of trust in its file, which are no learned parts, may have changed since."""
    shipped, told = load_prior(), read_json(TRUST_BY_KIND)["about"].values()
    assert {about["learned_parts"] for about in told} == {shipped.learned_digest}
    other = replace(shipped, inductive=deepcopy(shipped.inductive), trust=TrustPrior(known=()))
    assert other.learned_digest == shipped.learned_digest
    with torch.no_grad():
        last = [*other.inductive.parameters()][-1].view(-1)
        last[-1] = torch.nextafter(last[-1], torch.tensor(torch.inf))
    assert other.learned_digest != shipped.learned_digest


def test_sentences_have_their_own_numbers_of_trust():
    """For an encoder that is not known; the head itself is the same as that of photos."""
    kept = read_json(TRUST_BY_KIND)
    mine = TextClassifier(letters).fit(TOPICS)
    head = mine.fitted.head
    assert TrustPrior.from_json(head.trust) == TrustPrior.from_json(kept["trust"]["sentences"])
    texts, labels = zip(*((text, name) for name, some in TOPICS.items() for text in some), strict=True)
    photos = E3BMClassifier().fit(mine.features(texts), labels).head_
    assert head.temperature != photos.temperature
    assert not np.array_equal(head.levels, photos.levels)
    rows = mine.features(list(NEW.values())).astype(float)
    np.testing.assert_allclose(
        head.scores(rows) * head.temperature, photos.scores(rows) * photos.temperature, rtol=1e-3
    )


@pytest.mark.parametrize("name", [WORDLLAMA, MINILM])
def test_encoders_that_come_with_it_have_their_own_numbers(name):
    known = replace(choose_encoder(letters), origin=BackboneOrigin("text", name, ""))
    own = TextClassifier(known).fit(TOPICS).fitted.head
    assert TrustPrior.from_json(own.trust) == load_prior(None, name).trust
    assert own.temperature != TextClassifier(letters).fit(TOPICS).fitted.head.temperature


def test_a_prior_of_ones_own_keeps_its_numbers_of_trust(tmp_path):
    own = tmp_path / "own.safetensors"
    own.write_bytes(SHIPPED.read_bytes())
    given = TextClassifier(letters, prior=own).fit(TOPICS)
    assert TrustPrior.from_json(given.fitted.head.trust) == load_prior().trust


def test_a_file_answers_with_the_numbers_that_it_was_fitted_with(tmp_path):
    """Such as a file from before sentences had numbers of their own."""
    own = tmp_path / "own.safetensors"
    own.write_bytes(SHIPPED.read_bytes())
    former = TextClassifier(letters, prior=own).fit(TOPICS)
    loaded = TextClassifier.from_bytes(former.to_bytes(), encoder=letters)
    assert loaded.predict(NEW["food"]) == former.predict(NEW["food"])
    assert loaded.fitted.head.temperature == former.fitted.head.temperature
