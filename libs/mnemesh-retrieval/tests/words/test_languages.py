"""The language of a text, and the words that find it."""

import pytest
from mnemesh_retrieval.words.analysis import indexed, terms, text_language, words_of
from mnemesh_retrieval.words.languages import LANGUAGES

SENTENCES = {
    "czech": "Mám psa a dvě kočky, ale jsem často v práci.",
    "danish": "Jeg har to katte, og de sover ikke om natten.",
    "dutch": "Ik heb een hond en hij loopt graag in het bos.",
    "english": "I have two cats and a dog that sleeps all day.",
    "finnish": "Minulla on kaksi kissaa ja ne ovat aina nälkäisiä.",
    "french": "J'ai deux chats et nous habitons dans une grande maison.",
    "german": "Ich habe zwei Katzen und wir wohnen in einem alten Haus.",
    "hungarian": "Két macskám van és egy kutyám, de nem szeretik egymást.",
    "italian": "Ho due gatti e un cane che dormono nella stessa stanza.",
    "norwegian": "Jeg har to katter, men hva de gjør om natten vet jeg ikke noe om.",
    "polish": "Mam dwa koty i psa, ale nie wiem, co jedzą.",
    "portuguese": "Tenho dois gatos e um cachorro que não gosta de chuva.",
    "romanian": "Am două pisici și un câine care nu este prea tânăr.",
    "spanish": "Tengo dos gatos y un perro que duerme en la cocina.",
    "swedish": "Jag har två katter och en hund som inte tycker om dem.",
    "turkish": "Köpeğim çok güzel ve ben onu her gün seviyorum.",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_a_sentence_has_its_language(language: str) -> None:
    assert text_language(SENTENCES[language]) == language


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("spanish", "El tren llegó."),
        ("spanish", "No lo compré, se quedó allí."),
        ("spanish", "¿Qué tal la fiesta?"),
        ("spanish", "¡Feliz viaje con Marta!"),
        ("hungarian", "Láttam egy nagy kutyát és te?"),
        ("portuguese", "Não sei se a Ana já está."),
        ("french", "Il est né au bord de la mer."),
    ],
)
def test_accents_and_marks_tell_a_short_text_from_related_ones(language: str, text: str) -> None:
    assert text_language(text) == language


@pytest.mark.parametrize(
    "text", ["", "42", "Hello there", "New York", "I love La La Land.", "Go on, go on.", "The Hague", "日本", "кошка"]
)
def test_a_text_without_function_words_of_another_language_is_english(text: str) -> None:
    assert text_language(text) == "english"


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("live", "She lives in Rome."),
        ("lives", "We live by the sea."),
        ("die", "The plant died."),
        ("dying", "It dies in winter."),
        ("programmer", "I like programming."),
        ("program", "She is a programmer."),
        ("forget", "An unforgettable day? No, forgettable."),
        ("will not", "It won't work."),
        ("Anna", "That is Anna's book."),
        ("book's author", "the author of books"),
        ("went", "They go home."),
        ("children", "a child"),
        ("gave", "She gives it away."),
        ("given up", "He gave up."),
        ("tell", "I told her."),
        ("says", "He said no."),
        ("get", "We got a letter."),
        ("burned", "a burnt hand"),
        ("geese", "a goose"),
        ("кошки", "Вижу пять кошек."),
        ("кошек", "Моя кошка спит."),
        ("книга", "Он читает книги."),
        ("σπίτια", "Το σπίτι είναι μεγάλο."),
        ("الكتب", "كتب"),
        ("Haus", "Die Häuser sind alt und wir sehen sie."),
        ("Häuser", "Das Haus ist sehr alt."),
        ("Katze", "Ich habe zwei Katzen und sie sind nicht da."),
        ("chevaux", "Le cheval est dans le pré."),
        ("canciones", "Me gusta esta canción que es muy bonita."),
        ("gatto", "Ho due gatti e sono belli."),
        ("cafe", "Un café."),
        ("smørrebrød", "Smorrebrod"),
        ("東京", "私は東京に住んでいます"),
    ],
)
def test_a_query_finds_other_forms(query: str, text: str) -> None:
    assert _finds(query, text)


@pytest.mark.parametrize(
    ("query", "text"),
    [("win", "It won't work."), ("won", "It won\u2019t work."), ("list", "Listen!"), ("life", "She lives there.")],
)
def test_a_query_does_not_find_unrelated_words(query: str, text: str) -> None:
    assert not _finds(query, text)


@pytest.mark.parametrize("language", SENTENCES)
def test_each_word_finds_its_text_whatever_the_language_of_the_query(language: str) -> None:
    text = SENTENCES[language]
    for word in words_of(text):
        assert _finds(word, text)
        assert _finds(word.upper(), text)


def test_a_word_of_one_language_does_not_find_its_stem_in_another() -> None:
    assert "list" not in terms("listen", LANGUAGES)
    assert not _finds("listen", "The list is long and it was on the table.")


def _finds(query: str, text: str) -> bool:
    words = f" {indexed(text)} "
    return any(f" {term} " in words for term in terms(query, LANGUAGES))
