"""No way of writing a connection string shows its password, nor does a message that quotes it."""

from __future__ import annotations

from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidestate.statestore.secrets import (
    Secrets,
    has_password,
    public_connection,
    public_servers,
    public_url,
    secrets_of,
    secrets_of_options,
    secrets_of_url,
)

PUBLIC = "db.example.org:5432/flights"


def libpq(password: str) -> str:
    return password.replace("\\", "\\\\").replace("'", "\\'")


FORMS = {
    "before the host": lambda p: f"postgresql://jo:{quote(p, safe='')}@{PUBLIC}",
    "before the host, as it is": lambda p: f"postgresql://jo:{p}@{PUBLIC}",
    "in the query": lambda p: f"postgresql://{PUBLIC}?user=jo&password={quote(p, safe='')}",
    "in the query, as a form": lambda p: f"postgresql://{PUBLIC}?password={quote_plus(p)}&sslmode=require",
    "in the query, as it is": lambda p: f"postgresql://{PUBLIC}?password={p}",
    "in words": lambda p: f"host=db.example.org password='{libpq(p)}' dbname=flights",
    "in words, at the end": lambda p: f"host=db.example.org dbname=flights password = '{libpq(p)}'",
    "in words, as it is": lambda p: f"password={p} host=db.example.org",
}
PASSWORDS = st.text(
    st.one_of(st.sampled_from("/@%: ?&='\\#[]"), st.sampled_from("QXZ0")), min_size=4, max_size=12
).filter(lambda text: len(text.strip(" ")) >= 4)


def pieces(password: str) -> list[str]:
    """Parts of a password that no public part has: capital letters are of passwords alone here."""
    return [letter for letter in "QXZ" if letter in password]


@pytest.mark.parametrize("form", FORMS)
@given(password=PASSWORDS)
@example(password="p/QX@Z %2F")
@example(password="QX host=ZZ")
def test_no_part_of_a_password_is_public(form: str, password: str) -> None:
    text = FORMS[form](password)
    public = public_connection(text)
    if form == "in words, as it is" and "host=" in password:
        return  # that is a host, for every reader
    assert not any(piece in public for piece in pieces(password)), public


@pytest.mark.parametrize("form", FORMS)
@given(password=PASSWORDS)
@example(password="p/QX@Z %2F")
def test_a_message_that_quotes_the_string_or_the_password_shows_neither(form: str, password: str) -> None:
    text = FORMS[form](password)
    secrets = secrets_of(text)
    for quoting in (f"no {text!r}", f"no {text}", f"bad {password}", f"bad {quote(password)}", f"{password!r}"):
        message = secrets.without(quoting)
        assert password not in message
        assert not any(piece in message for piece in pieces(password)), message


def test_what_is_clear_is_public() -> None:
    assert public_connection("postgresql://jo:x@h1:1,h2:2/d?sslmode=require") == "postgresql://h1:1,h2:2/d"
    assert public_connection("postgresql:///d?host=/tmp&user=jo") == "postgresql:///d"
    assert public_connection("host=h port=5 dbname=d user=u password='a b'") == "host=h port=5 dbname=d"
    assert public_connection("nothing") == "***"
    assert secrets_of("postgresql://jo@h/d").without("no route to h") == "no route to h"
    assert secrets_of("host=h password=abc").without("abc at h") == "*** at h"


def test_paths_and_urls_are_public_without_users_and_queries() -> None:
    assert public_url("/data/a@b?c=d") == "/data/a@b?c=d"
    assert public_url("s3://bucket/a@b") == "s3://bucket/a@b"
    assert public_url("s3://key:sec/ret@bucket/a") == "s3://bucket/a"
    assert public_url("abfss://box@host/a@b") == "abfss://host/a@b"
    assert public_url("https://host/a?sig=abc") == "https://host/a"
    assert secrets_of_url("s3://key:sec/ret@bucket/a").without("no sec/ret") == "no ***"
    assert secrets_of_url("https://host/a?sig=abc").without("no abc") == "no ***"
    assert secrets_of_url("s3://bucket/a").values == ()
    assert public_servers("jo:x@h:9092,i:9093") == "h:9092,i:9093"
    assert public_servers("h:9092") == "h:9092"


def test_a_root_with_a_password_is_known() -> None:
    for url in ("s3://key:sec/ret@bucket/a", "s3://key:secret@bucket", "hdfs://h:80@i/a", "az://b/a?sig=abc&x=y"):
        assert has_password(url)
    for url in ("hdfs://h:8020/a@b", "abfss://box@host/a", "s3://bucket/a:b@c", "s3://bucket/a?b=c", "/data/a:b@c"):
        assert not has_password(url)


@given(PASSWORDS)
def test_options_that_are_secret_by_name_or_stand_in_a_url(password: str) -> None:
    for options in (
        {"sasl.username": "jo", "sasl.password": password},
        {"AWS_SECRET_ACCESS_KEY": password, "AWS_REGION": "x"},
        {"s3.secret-access-key": password},
        {"uri": f"postgresql+psycopg://jo:{password}@h/d"},
        {"token": password},
    ):
        message = secrets_of_options(options).without(f"no {options}")
        assert not any(piece in message for piece in pieces(password)), message
    assert secrets_of_options({"uri": "http://h/d", "warehouse": "s3://b"}) == Secrets()
