"""Conversations with a server of TLS 1.3, correct ones and wrong ones in each state. Usage: conversations.py HOST PORT
[CERTIFICATE KEY OTHER-CERTIFICATE]. The server returns what it receives. With files, it requires a certificate of
clients, and accepts the first of the two. Prints the conversations that end otherwise than by RFC 8446 with the reason,
and fails if one ends neither as by the RFC nor as listed in DEVIATIONS."""

import sys

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from tls_client import (ALERT, CCS, CERTIFICATE, DATA, ECHO, END, FINISHED, HANDSHAKE, HELLO, P256, P384, RESET, SUITES,
                        TICKET, UPDATE, VERIFY, X25519, Client, Ended, Psk, message, record, u16, vec)

ADDRESS = (sys.argv[1], int(sys.argv[2]))
# Alerts of RFC 8446 §6.
CLOSE, UNEXPECTED, BAD_RECORD, OVERFLOW, FAILURE, ILLEGAL, DECODE, DECRYPT, VERSION, MISSING = (
    0, 10, 20, 22, 40, 47, 50, 51, 70, 109)
BAD_CERTIFICATE, UNKNOWN_CA, UNSUPPORTED, REQUIRED = 42, 48, 110, 116
# Known outcomes other than those of the RFC, by the conversation. All alerts of handshakes are chosen by rustls.
MISSING_IS_FAILURE = (FAILURE, "a missing extension is no common parameter for rustls")
NO_ALERT = (END, "rustls ends the handshake without an alert, which is a SHOULD of section 6.2")
DEVIATIONS = {
    "groups missing": MISSING_IS_FAILURE,
    "share missing": MISSING_IS_FAILURE,
    "signatures missing": MISSING_IS_FAILURE,
    "version 1.1 without extensions": (FAILURE, "rustls checks the extensions before the version"),
    "hello without extensions": (FAILURE, "rustls checks the extensions before the version"),
    "version 1.3 with SSL 3.0 in the old field": (ECHO, "rustls ignores the old field, as for other versions"),
    "change_cipher_spec without end": NO_ALERT,
    "finished in fragments with data between": NO_ALERT,
    "padding only before finished": NO_ALERT,
    "finished after an empty record": (ECHO, "rustls allows a few empty records of a handshake"),
    "heartbeat before finished": (DECODE, "an unknown content type is not decoded by rustls"),
    "record too long before finished": (BAD_RECORD, "rustls allows 2^14 + 2048 bytes, as TLS 1.2 does"),
    "certificate with an extension": NO_ALERT,
    "certificates of 100 000 bytes": NO_ALERT,
    "close_notify before finished": (DECODE, "rustls expects warnings on open connections only"),
}

CCS_RECORD = record(CCS, b"\1")
NOISE = message(99, b"")


def hello(**changes):
    """Opens a connection with a changed ClientHello, and exchanges data."""
    def run(c):
        c.open(**changes)
        c.echo()
    return run


def extension(kind, data):
    return hello(ext={kind: data})


def first(*parts):
    """Sends bytes in place of a ClientHello."""
    return lambda c: c.send(*parts)


def changed_hello(change):
    return lambda c: c.send(record(HANDSHAKE, change(c.hello())))


def in_records(size, gap=b"", version=0x0303, **changes):
    """Sends a ClientHello in records of `size` bytes."""
    def run(c):
        whole = c.hello(**changes)
        c.transcript += whole
        c.send(*[record(HANDSHAKE, whole[at:at + size], version) + gap for at in range(0, len(whole), size)])
        assert c.server_hello()
        c.flight()
        c.finish()
        c.echo()
    return run


def retry(second=None, *, between=b"", **changes):
    """Makes the server send a HelloRetryRequest, and sends a second ClientHello with the changes `second`."""
    def run(c):
        begin = dict(shares=(), groups=(P384, P256)) | changes
        whole = c.hello(**begin)
        c.transcript += whole
        c.send(record(HANDSHAKE, whole))
        assert not c.server_hello(), "no HelloRetryRequest"
        group = c.group
        whole = c.hello(**(begin | dict(shares=(group,), session=c.session) | (second or {})))
        c.transcript += whole
        c.send(between, record(HANDSHAKE, whole))
        assert c.server_hello(), "a second HelloRetryRequest"
        assert c.group == group
        c.flight()
        c.finish()
        c.echo()
    return run


def unfinished(*parts):
    """Sends records in place of Finished."""
    def run(c):
        c.greet()
        c.send(*(part(c) if callable(part) else part for part in parts))
    return run


def sealed(content, data, padding=0):
    return lambda c: c.tx.seal(content, data, padding)


def last(c):
    """Returns the correct Finished."""
    return message(FINISHED, c.finished(c.tx, c.transcript))


def opened(*parts, echo=False):
    """Sends records on an open connection, and exchanges data after them if `echo` is set."""
    def run(c):
        c.open()
        c.echo()
        c.send(*(part(c) if callable(part) else part for part in parts))
        if echo:
            c.echo(b"after")
    return run


def data(content, size=0, padding=0):
    """Exchanges data in a record with padding."""
    def run(c):
        c.open()
        c.send(c.tx.seal(DATA, content or bytes(size), padding))
        c.await_data(content or bytes(size))
    return run


def updates(request, times=1, answer=True):
    """Sends KeyUpdate a number of times, with data after each if `answer` is set."""
    def run(c):
        c.open()
        for n in range(times):
            c.send(c.tx.seal(HANDSHAKE, message(UPDATE, bytes([request]))))
            c.tx = c.tx.next()
            if answer:
                c.echo(b"%d" % n)
    return run


def stale_keys(c):
    c.open()
    c.send(c.tx.seal(HANDSHAKE, message(UPDATE, b"\0")))
    c.send(c.tx.seal(DATA, b"old keys"))


def replay(c):
    c.open()
    sent = c.tx.seal(DATA, b"once")
    c.send(sent)
    c.await_data(b"once")
    c.send(sent)


def reorder(c):
    c.open()
    one, two = c.tx.seal(DATA, b"one"), c.tx.seal(DATA, b"two")
    c.send(two, one)


def changed(at):
    def run(c):
        c.open()
        sent = bytearray(c.tx.seal(DATA, b"changed"))
        sent[at] ^= 1
        c.send(sent)
    return run


def half_closed(c):
    """Data before close_notify is answered."""
    c.open()
    c.send(c.tx.seal(DATA, b"last"), c.tx.seal(ALERT, bytes([1, 0])))
    c.await_data(b"last")
    c.outcome = None


def together(c):
    """Data may follow Finished at once."""
    c.greet()
    c.finish(more=lambda: c.tx.seal(DATA, b"data"))
    c.await_data(b"data")


def ticket(suite=0x1301):
    """Returns a ticket of a connection with `suite`."""
    c = Client(ADDRESS)
    c.open(suites=(suite,))
    c.echo()
    assert len({ticket.identity for ticket in c.tickets}) == len(c.tickets)
    c.sock.close()
    return c.tickets[0]


def resumed(is_resumed=True, change=lambda psk: psk, suite=0x1301, **changes):
    """Opens a connection with a ticket."""
    def run(c):
        psk = change(ticket(suite))
        c.open(psk=psk, **changes)
        assert c.is_resumed == is_resumed, "resumed" if c.is_resumed else "not resumed"
        c.echo()
    return run


def forged(psk):
    return Psk(psk.suite, psk.key, psk.identity[:-1] + bytes([psk.identity[-1] ^ 1]))


def early(records, size=100):
    """Sends early data, which the server skips."""
    def run(c):
        whole = c.hello(psk=ticket(), ext={42: b""})
        c.transcript += whole
        c.send(record(HANDSHAKE, whole), CCS_RECORD, *[record(DATA, bytes(size)) for _ in range(records)])
        assert c.server_hello()
        c.flight()
        c.finish()
        c.echo()
    return run


class Identity:
    """Certificate of a client, and a key for signatures."""

    def __init__(self, file, key=None):
        with open(file, "rb") as pem:
            self.chain = [x509.load_pem_x509_certificate(pem.read()).public_bytes(Encoding.DER)]
        with open(key or file, "rb") as pem:
            self.key = load_pem_private_key(pem.read(), None) if key else ec.generate_private_key(ec.SECP256R1())


def certificate(chain, context=b"", extensions=b""):
    entries = [vec(3, entry) + vec(2, extensions) for entry in chain]
    return message(CERTIFICATE, vec(1, context) + vec(3, *entries))


def verify(c, key, scheme=0x0403, role=b"client"):
    transcript = SUITES[c.suite][0](c.transcript).digest()
    signed = b" " * 64 + b"TLS 1.3, " + role + b" CertificateVerify\0" + transcript
    return message(VERIFY, u16(scheme) + vec(2, key.sign(signed, ec.ECDSA(hashes.SHA256()))))


def authenticate(identity, *, of_certificate={}, times=1, **of_verify):
    """Presents a certificate and a signature."""
    def run(c):
        c.greet()
        parts = [lambda: certificate(identity.chain, **of_certificate)] * times
        if of_verify.pop("signs", True):
            parts.append(lambda: verify(c, identity.key, **of_verify))
        for part in parts:
            part = part()
            c.transcript += part
            for at in range(0, len(part), 1 << 14):
                c.send(c.tx.seal(HANDSHAKE, part[at:at + (1 << 14)]))
        c.finish()
        c.echo()
    return run


def of_clients(own, other):
    """Returns the conversations with a server that requires a certificate and accepts `own`."""
    def chain(*entries):
        changed = Identity(sys.argv[3], sys.argv[4])
        changed.chain = list(entries)
        return changed

    def mixed():
        changed = chain(*own.chain)
        changed.key = other.key
        return changed

    der = own.chain[0]
    return [
        ("certificate", ECHO, authenticate(own)),
        ("certificate of another authority", (UNKNOWN_CA, DECRYPT), authenticate(other)),
        ("certificate missing", (UNEXPECTED, REQUIRED), lambda c: (c.greet(), c.finish(), c.echo())),
        ("certificates none", REQUIRED, authenticate(chain(), signs=False)),
        ("certificates none, and a signature", (REQUIRED, UNEXPECTED), authenticate(chain())),
        ("certificate empty", (DECODE, BAD_CERTIFICATE), authenticate(chain(b""))),
        ("certificate truncated", (BAD_CERTIFICATE, DECODE), authenticate(chain(der[:-1]))),
        ("certificate changed", (BAD_CERTIFICATE, DECRYPT, UNKNOWN_CA),
         authenticate(chain(der[:-1] + bytes([der[-1] ^ 1])))),
        ("certificate twice", UNEXPECTED, authenticate(own, times=2)),
        ("certificate with a context", (ILLEGAL, DECODE), authenticate(own, of_certificate={"context": b"c"})),
        ("certificate with an extension", (UNSUPPORTED, ILLEGAL, DECODE),
         authenticate(own, of_certificate={"extensions": u16(5) + vec(2, b"\1" + vec(3, b"a"))})),
        ("certificates of 100 000 bytes", (BAD_CERTIFICATE, DECODE, ILLEGAL), authenticate(chain(der, bytes(100_000)))),
        ("signature missing", UNEXPECTED, authenticate(own, signs=False)),
        ("signature of another key", DECRYPT, authenticate(mixed())),
        ("signature of a server", DECRYPT, authenticate(own, role=b"server")),
        ("signature by SHA-1", ILLEGAL, authenticate(own, scheme=0x0203)),
        ("signature by an algorithm of another key", (ILLEGAL, DECRYPT), authenticate(own, scheme=0x0804)),
        ("signature by an unknown algorithm", ILLEGAL, authenticate(own, scheme=0xFFFF)),
    ]


NAME = lambda name, kind=0: vec(2, bytes([kind]) + vec(2, name))
SHARES = lambda *shares: vec(2, *(u16(group) + vec(2, share) for group, share in shares))

CONVERSATIONS = [
    # Suites and groups.
    *((f"suite {suite:x}, group {group}", ECHO, hello(suites=(suite,), groups=(group,), shares=(group,)))
      for suite in SUITES for group in (X25519, P256, P384)),
    ("suites of other versions and GREASE", ECHO, hello(suites=(0x0A0A, 0xC02F, 0x00FF, 0x5600, 0x1303))),
    ("suites all unknown", FAILURE, hello(suites=(0x0A0A, 0x1399))),
    ("suites none", (ILLEGAL, DECODE, FAILURE), hello(suites=())),
    ("suites of TLS 1.2 only", FAILURE, hello(suites=(0xC02F, 0xC02B))),
    ("groups all unknown", FAILURE, hello(groups=(0x0A0A, 0x9999), shares=())),
    ("groups with GREASE and unknown shares", ECHO,
     hello(groups=(0x0A0A, P256, X25519), shares=(P256,))),
    ("groups empty", DECODE, extension(10, u16(0))),
    ("groups odd", DECODE, extension(10, b"\0\3\0\x1d\0")),
    ("groups missing", MISSING, extension(10, None)),
    ("share missing", MISSING, extension(51, None)),
    ("share twice", ILLEGAL, extension(51, SHARES((X25519, bytes(32)), (X25519, bytes(32))))),
    ("share zero", ILLEGAL, extension(51, SHARES((X25519, bytes(32))))),
    ("share short", ILLEGAL, extension(51, SHARES((X25519, bytes(31))))),
    ("share long", ILLEGAL, extension(51, SHARES((X25519, bytes([9] * 33))))),
    ("share empty", (ILLEGAL, DECODE), extension(51, SHARES((X25519, b"")))),
    ("share not on the curve", ILLEGAL, hello(groups=(P256,), ext={51: SHARES((P256, b"\4" + bytes([1] * 64)))})),
    ("share compressed", ILLEGAL, hello(groups=(P256,), ext={51: SHARES((P256, b"\2" + bytes([1] * 32)))})),
    ("share truncated", DECODE, extension(51, u16(38, X25519, 32) + bytes(31))),
    # HelloRetryRequest.
    *((f"retry {group}", ECHO, retry(groups=(group,))) for group in (X25519, P256, P384)),
    ("retry with change_cipher_spec", ECHO, retry(between=CCS_RECORD)),
    ("retry without a session", ECHO, retry(session=b"")),
    ("retry of another suite", ILLEGAL, retry({"suites": (0x1303,)}, suites=(0x1301, 0x1303))),
    ("retry without a share", ILLEGAL, retry({"shares": ()})),
    ("retry with another group", ILLEGAL, retry({"shares": (P256,)}, groups=(P384, P256, X25519), suites=(0x1301,))),
    ("retry with Finished", UNEXPECTED, retry(between=record(HANDSHAKE, message(FINISHED, bytes(32))))),
    ("retry with data", UNEXPECTED, retry(between=record(DATA, bytes(40)))),
    # Versions and compression.
    ("version TLS 1.2", VERSION, extension(43, None)),
    ("version TLS 1.2 listed", VERSION, extension(43, vec(1, u16(0x0303)))),
    ("version 1.1 without extensions", VERSION, first(record(HANDSHAKE, message(
        HELLO, u16(0x0302) + bytes(32) + b"\0" + vec(2, u16(0x2F)) + b"\1\0"), 0x0301))),
    ("version SSL 3.0", VERSION, hello(version=0x0300, ext={43: None})),
    ("version 1.3 with SSL 3.0 in the old field", VERSION, hello(version=0x0300)),
    ("version SSL 2.0", (VERSION, UNEXPECTED, DECODE),
     first(bytes.fromhex("802e010002001500000010010080020080060040040080") + bytes(24))),
    ("version 1.3 in the old field", ECHO, hello(version=0x0304)),
    ("version 1.0 in the old field", ECHO, hello(version=0x0301)),
    ("version unknown and 1.3", ECHO, extension(43, vec(1, u16(0x7F1C, 0x0A0A, 0x0304)))),
    ("version list empty", DECODE, extension(43, b"\0")),
    ("version list odd", DECODE, extension(43, b"\3\3\4\3")),
    ("compression by DEFLATE too", ILLEGAL, hello(compression=b"\1\0")),
    ("compression by DEFLATE only", ILLEGAL, hello(compression=b"\1")),
    ("compression none", (ILLEGAL, DECODE), hello(compression=b"")),
    ("session of 33 bytes", (ILLEGAL, DECODE), hello(session=bytes(33))),
    ("session empty", ECHO, hello(session=b"")),
    ("session of one byte", ECHO, hello(session=b"s")),
    # Extensions.
    ("extension twice", (ILLEGAL, DECODE), hello(more=u16(43) + vec(2, vec(1, u16(0x0304))))),
    ("extensions unknown", ECHO, hello(more=b"".join(u16(0x6000 + n) + vec(2, bytes(n % 50)) for n in range(200)))),
    ("extension unknown twice", (ILLEGAL, DECODE), hello(more=(u16(0x6000) + vec(2, b"")) * 2)),
    ("extension truncated", DECODE, hello(more=u16(0x6000, 5) + b"abc")),
    ("extensions with a rest", DECODE, hello(more=b"\0")),
    ("hello with a rest", DECODE, hello(tail=b"\0")),
    ("hello truncated", DECODE, changed_hello(lambda whole: message(HELLO, whole[4:60]))),
    ("hello without extensions", VERSION, changed_hello(lambda whole: message(HELLO, whole[4:4 + 34 + 33 + 8 + 2]))),
    ("signatures missing", MISSING, extension(13, None)),
    ("signatures empty", DECODE, extension(13, u16(0))),
    ("signatures odd", DECODE, extension(13, b"\0\3\4\3\5")),
    ("signatures of another key", FAILURE, extension(13, vec(2, u16(0x0804, 0x0807)))),
    ("signatures of TLS 1.2", FAILURE, extension(13, vec(2, u16(0x0203, 0x0401)))),
    ("signatures unknown and known", ECHO, extension(13, vec(2, u16(0x0A0A, 0xFFFF, 0x0403)))),
    ("name", ECHO, extension(0, NAME(b"localhost"))),
    ("name unknown", ECHO, extension(0, NAME(b"unknown.test"))),
    ("name an address", ECHO, extension(0, NAME(b"127.0.0.1"))),
    ("name empty", (DECODE, ILLEGAL), extension(0, NAME(b""))),
    ("name list empty", DECODE, extension(0, u16(0))),
    ("name with zero bytes", (DECODE, ILLEGAL), extension(0, NAME(b"a\0b"))),
    ("name truncated", DECODE, extension(0, u16(9) + b"\0" + u16(20) + b"abcdef")),
    ("protocols unknown to a service without any", ECHO, extension(16, vec(2, vec(1, b"h9")))),
    ("protocols empty", DECODE, extension(16, u16(0))),
    ("protocol empty", (DECODE, ILLEGAL), extension(16, vec(2, vec(1, b"")))),
    ("cookie unrequested", (ECHO, ILLEGAL), extension(44, vec(2, b"cookie"))),
    ("record size limit and fragment length", ECHO, hello(ext={28: u16(64), 1: b"\1"})),
    ("certificate status", ECHO, extension(5, b"\1\0\0\0\0")),
    ("post-handshake authentication", ECHO, extension(49, b"")),
    ("heartbeat", ECHO, extension(15, b"\1")),
    ("renegotiation", ECHO, extension(0xFF01, b"\0")),
    # Records of the ClientHello.
    ("hello in records of one byte", ECHO, in_records(1)),
    ("hello in two records", ECHO, in_records(100)),
    ("hello with empty records", UNEXPECTED, in_records(100, record(HANDSHAKE, b""))),
    ("hello with change_cipher_spec between", UNEXPECTED, in_records(100, CCS_RECORD)),
    ("hello with data between", UNEXPECTED, in_records(100, record(DATA, b"data"))),
    ("hello with an alert between", (UNEXPECTED, RESET, END),
     in_records(100, record(ALERT, b"\2\x28"))),
    ("hello of 15 000 bytes", ECHO, extension(21, bytes(15_000))),
    ("hello of 60 000 bytes", ECHO, in_records(1 << 14, ext={21: bytes(60_000)})),
    ("hello that never ends", (DECODE, UNEXPECTED, OVERFLOW, ILLEGAL),
     first(record(HANDSHAKE, b"\1\xff\xff\xff" + bytes(10_000)), record(HANDSHAKE, bytes(16_000)) * 40)),
    ("hello with a message after it", UNEXPECTED, changed_hello(lambda whole: whole + NOISE)),
    ("hello twice", UNEXPECTED, changed_hello(lambda whole: whole + whole)),
    ("record of another version", ECHO, in_records(1 << 14, version=0x0301)),
    ("record of 16 385 bytes", OVERFLOW, first(record(HANDSHAKE, b"\1\0\xff\0" + bytes(16_381)))),
    ("record empty", (UNEXPECTED, DECODE), first(record(HANDSHAKE, b""))),
    ("record of an unknown type", (UNEXPECTED, DECODE), first(record(99, b"data"))),
    # Other first messages.
    ("first HTTP", (UNEXPECTED, DECODE, OVERFLOW, VERSION), first(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")),
    ("first data", UNEXPECTED, first(record(DATA, b"data"))),
    ("first change_cipher_spec", UNEXPECTED, first(CCS_RECORD)),
    ("first an alert", (RESET, END), first(record(ALERT, b"\2\x28"))),
    *((f"first message {kind}", (UNEXPECTED, DECODE), first(record(HANDSHAKE, message(kind, bytes(32)))))
      for kind in (0, 2, 4, 5, 8, 11, 15, 20, 24, 99)),
    # After the flight of the server.
    ("change_cipher_spec after hello", ECHO, lambda c: (c.greet(), c.send(CCS_RECORD), c.finish(), c.echo())),
    ("change_cipher_spec twice", (ECHO, UNEXPECTED),
     lambda c: (c.greet(), c.send(CCS_RECORD * 2), c.finish(), c.echo())),
    ("change_cipher_spec without end", UNEXPECTED, unfinished(CCS_RECORD * 100)),
    ("change_cipher_spec of value 2", UNEXPECTED, unfinished(record(CCS, b"\2"))),
    ("change_cipher_spec of two bytes", (UNEXPECTED, DECODE), unfinished(record(CCS, b"\1\1"))),
    ("change_cipher_spec empty", (UNEXPECTED, DECODE), unfinished(record(CCS, b""))),
    ("change_cipher_spec sealed", UNEXPECTED, unfinished(sealed(CCS, b"\1"))),
    ("finished with padding", ECHO, lambda c: (c.greet(), c.finish(padding=1000), c.echo())),
    ("finished wrong", DECRYPT, unfinished(sealed(HANDSHAKE, message(FINISHED, bytes(32))))),
    ("finished short", (DECODE, DECRYPT), unfinished(lambda c: c.tx.seal(HANDSHAKE, message(FINISHED, last(c)[4:-1])))),
    ("finished long", (DECODE, DECRYPT),
     unfinished(lambda c: c.tx.seal(HANDSHAKE, message(FINISHED, last(c)[4:] + b"\0")))),
    ("finished empty", (DECODE, DECRYPT), unfinished(sealed(HANDSHAKE, message(FINISHED, b"")))),
    ("finished plain", (UNEXPECTED, BAD_RECORD), unfinished(lambda c: record(HANDSHAKE, last(c)))),
    ("finished in fragments", ECHO, lambda c: (c.greet(), c.finish(size=7), c.echo())),
    ("finished in fragments with data between", UNEXPECTED,
     unfinished(lambda c: c.tx.seal(HANDSHAKE, last(c)[:7]), sealed(DATA, b"data"))),
    ("finished with a message after it", UNEXPECTED, unfinished(lambda c: c.tx.seal(HANDSHAKE, last(c) + NOISE))),
    ("finished after an empty record", UNEXPECTED,
     lambda c: (c.greet(), c.send(c.tx.seal(HANDSHAKE, b"")), c.finish(), c.echo())),
    ("finished with data at once", ECHO, together),
    *((f"message {kind} for finished", (UNEXPECTED, DECODE), unfinished(sealed(HANDSHAKE, message(kind, body))))
      for kind, body in ((HELLO, bytes(40)), (TICKET, bytes(40)), (5, b""), (CERTIFICATE, bytes(4)),
                         (VERIFY, u16(0x0403, 0)), (UPDATE, b"\0"), (99, b""))),
    ("data before finished", UNEXPECTED, unfinished(sealed(DATA, b"data"))),
    ("bad record before finished", BAD_RECORD, unfinished(record(DATA, bytes(50)))),
    ("heartbeat before finished", UNEXPECTED, unfinished(sealed(24, b"\1\0\0"))),
    ("padding only before finished", UNEXPECTED, unfinished(sealed(None, b"", 100))),
    ("record too long before finished", OVERFLOW, unfinished(record(DATA, bytes((1 << 14) + 257)))),
    ("close_notify before finished", (CLOSE, RESET, END), unfinished(sealed(ALERT, b"\1\0"))),
    # Open connections.
    *((f"data of {size} bytes, padding of {padding}", ECHO, data(b"", size, padding))
      for size, padding in ((1, 0), (1, 1), (1, 255), (100, 10_000), ((1 << 14) - 1, 1), (1 << 14, 0))),
    ("data too long", OVERFLOW, opened(sealed(DATA, bytes((1 << 14) + 1)))),
    ("data too long with padding", OVERFLOW, opened(sealed(DATA, b"a", 1 << 14))),
    ("record too long", OVERFLOW, opened(record(DATA, bytes((1 << 14) + 257)))),
    ("record of padding only", UNEXPECTED, opened(sealed(None, b"", 100))),
    ("record without content", UNEXPECTED, opened(sealed(None, b""))),
    ("record shorter than its tag", BAD_RECORD, opened(record(DATA, bytes(15)))),
    ("record empty on an open connection", BAD_RECORD, opened(record(DATA, b""))),
    ("data empty", ECHO, opened(*[sealed(DATA, b"")] * 5, echo=True)),
    ("data empty without end", UNEXPECTED, opened(*[sealed(DATA, b"")] * 100)),
    ("data empty with padding without end", UNEXPECTED, opened(*[sealed(DATA, b"", 1000)] * 100)),
    ("data in plain", UNEXPECTED, opened(record(HANDSHAKE, b"data"))),
    ("change_cipher_spec on an open connection", UNEXPECTED, opened(CCS_RECORD)),
    ("alert in plain", UNEXPECTED, opened(record(ALERT, b"\2\x28"))),
    ("replay", BAD_RECORD, replay),
    ("reordered", BAD_RECORD, reorder),
    *((f"changed byte {at}", BAD_RECORD, changed(at)) for at in (5, 7, -1)),
    ("heartbeat on an open connection", UNEXPECTED, opened(sealed(24, b"\1\0\0"))),
    ("renegotiation by hello", UNEXPECTED, opened(lambda c: c.tx.seal(HANDSHAKE, c.hello()))),
    ("renegotiation by request", UNEXPECTED, opened(sealed(HANDSHAKE, message(0, b"")))),
    *((f"message {kind} on an open connection", UNEXPECTED, opened(sealed(HANDSHAKE, message(kind, bytes(32)))))
      for kind in (TICKET, 5, CERTIFICATE, 13, VERIFY, FINISHED, 99)),
    ("message empty", UNEXPECTED, opened(sealed(HANDSHAKE, b""))),
    ("message that never ends", (UNEXPECTED, DECODE), opened(sealed(HANDSHAKE, b"\x18\xff\xff\xff"),
                                                              *[sealed(HANDSHAKE, bytes(1 << 14))] * 10)),
    # KeyUpdate.
    ("updates", ECHO, updates(0, 20)),
    ("updates requested", ECHO, updates(1, 20)),
    ("updates without end", UNEXPECTED, updates(0, 100, answer=False)),
    ("updates requested without end", UNEXPECTED, updates(1, 100, answer=False)),
    ("update of value 2", ILLEGAL, opened(sealed(HANDSHAKE, message(UPDATE, b"\2")))),
    ("update empty", DECODE, opened(sealed(HANDSHAKE, message(UPDATE, b"")))),
    ("update of two bytes", DECODE, opened(sealed(HANDSHAKE, message(UPDATE, b"\0\0")))),
    ("update with another in the record", UNEXPECTED, opened(sealed(HANDSHAKE, message(UPDATE, b"\0") * 2))),
    ("update and old keys", BAD_RECORD, stale_keys),
    ("update interleaved with data", UNEXPECTED,
     opened(sealed(HANDSHAKE, message(UPDATE, b"\0")[:2]), sealed(DATA, b"data"))),
    # Ends.
    ("close_notify", CLOSE, opened(sealed(ALERT, b"\1\0"))),
    ("close_notify after data", CLOSE, half_closed),
    ("close_notify with another level", CLOSE, opened(sealed(ALERT, b"\2\0"))),
    ("user_canceled, then close_notify", CLOSE, opened(sealed(ALERT, b"\1\x5a"), sealed(ALERT, b"\1\0"))),
    ("user_canceled without end", UNEXPECTED, opened(*[sealed(ALERT, b"\1\x5a")] * 100)),
    ("fatal alert", (RESET, END), opened(sealed(ALERT, b"\2\x28"))),
    ("alert of an unknown kind", (RESET, END), opened(sealed(ALERT, b"\1\xc8"))),
    ("alert in fragments", DECODE, opened(sealed(ALERT, b"\1"), sealed(ALERT, b"\0"))),
    ("alert twice in a record", DECODE, opened(sealed(ALERT, b"\1\x5a\1\0"))),
    ("alert empty", UNEXPECTED, opened(sealed(ALERT, b""))),
    # Tickets.
    *((f"ticket of suite {suite:x}", ECHO, resumed(suite=suite, suites=(suite,))) for suite in SUITES),
    ("ticket with another suite of its hash", ECHO, resumed(False, suites=(0x1303,))),
    ("ticket with a suite of another hash", ECHO, resumed(False, suites=(0x1302,))),
    ("ticket changed", ECHO, resumed(False, forged)),
    ("ticket unknown", ECHO, resumed(False, lambda psk: Psk(psk.suite, psk.key, b"unknown"))),
    ("ticket with another binder", DECRYPT, resumed(binder=bytes(32))),
    ("ticket with another key", DECRYPT, resumed(change=lambda psk: Psk(psk.suite, bytes(32), psk.identity))),
    ("ticket without a mode", MISSING, resumed(ext={45: None})),
    ("ticket without modes", DECODE, resumed(ext={45: b"\0"})),
    ("ticket without a key exchange", (ECHO, FAILURE), resumed(False, ext={45: b"\1\0"})),
    ("ticket and two identities for one binder", ILLEGAL,
     resumed(identities=(vec(2, b"one") + bytes(4)) * 2)),
    ("ticket and no identity", (ILLEGAL, DECODE), resumed(identities=b"")),
    ("ticket of no bytes", (ILLEGAL, DECODE), resumed(identities=vec(2, b"") + bytes(4))),
    ("ticket before another extension", ILLEGAL, hello(more=u16(41) + vec(2, vec(2, vec(2, b"id") + bytes(4)), vec(
        2, vec(1, bytes(32)))) + u16(45) + vec(2, b"\1\1"))),
    ("early data", ECHO, early(3)),
    ("early data without end", (UNEXPECTED, BAD_RECORD), early(20, 16_000)),
]


def outcome(run):
    """Returns the alert or end with which a conversation ends."""
    c = Client(ADDRESS)
    try:
        run(c)
        while c.outcome != ECHO:
            c.read_data()
        return ECHO
    except Ended as ended:
        return ended.outcome
    except Exception as error:
        return repr(error)
    finally:
        c.sock.close()


def main():
    conversations, failed = CONVERSATIONS, []
    if len(sys.argv) > 3:
        conversations = of_clients(Identity(sys.argv[3], sys.argv[4]), Identity(sys.argv[5]))
    for name, expected, run in conversations:
        expected = expected if isinstance(expected, tuple) else (expected,)
        found = outcome(run)
        known, reason = DEVIATIONS.get(name, (None, None))
        if found not in expected and found == known:
            print(f"{name}: {found} instead of {expected[0]}: {reason}")
        elif found not in expected or known is not None:
            failed.append(f"{name}: {found} instead of {expected}")
    print(f"{len(conversations)} conversations")
    sys.exit("\n".join(failed) or None)


main()
