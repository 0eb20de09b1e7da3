"""TLS 1.3 client (RFC 8446) that sends any message in any state, on the primitives of python3-cryptography."""

import hashlib
import hmac
import os
import socket

from cryptography.hazmat.primitives.asymmetric import ec, x25519
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

CCS, ALERT, HANDSHAKE, DATA = 20, 21, 22, 23
HELLO, SERVER_HELLO, TICKET, EXTENSIONS, CERTIFICATE, REQUEST, VERIFY, FINISHED, UPDATE = 1, 2, 4, 8, 11, 13, 15, 20, 24
# Hash, cipher and length of the key.
SUITES = {
    0x1301: (hashlib.sha256, AESGCM, 16),
    0x1302: (hashlib.sha384, AESGCM, 32),
    0x1303: (hashlib.sha256, ChaCha20Poly1305, 32),
}
X25519, P256, P384 = 29, 23, 24
GROUPS = {X25519: None, P256: ec.SECP256R1(), P384: ec.SECP384R1()}
# Random value of a ServerHello that is a HelloRetryRequest.
RETRY = hashlib.sha256(b"HelloRetryRequest").digest()
TIMEOUT = 5


def vec(size, *parts):
    """Returns the parts with their length in `size` bytes."""
    whole = b"".join(parts)
    return len(whole).to_bytes(size, "big") + whole


def u16(*numbers):
    return b"".join(number.to_bytes(2, "big") for number in numbers)


def message(kind, body):
    return bytes([kind]) + vec(3, body)


def record(content, data, version=0x0303):
    return bytes([content]) + u16(version) + vec(2, data)


def expand(hash, secret, label, context, length):
    info = u16(length) + vec(1, b"tls13 " + label) + vec(1, context)
    out, block = b"", b""
    while len(out) < length:
        block = hmac.digest(secret, block + info + bytes([len(out) // hash().digest_size + 1]), hash)
        out += block
    return out[:length]


class Share:
    """Key for the key exchange in `group`."""

    def __init__(self, group):
        self.group = group
        curve = GROUPS[group]
        self.key = ec.generate_private_key(curve) if curve else x25519.X25519PrivateKey.generate()
        formats = (Encoding.X962, PublicFormat.UncompressedPoint) if curve else (Encoding.Raw, PublicFormat.Raw)
        self.public = self.key.public_key().public_bytes(*formats)

    def secret(self, public):
        curve = GROUPS[self.group]
        if curve is None:
            return self.key.exchange(x25519.X25519PublicKey.from_public_bytes(public))
        return self.key.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(curve, public))


class Keys:
    """Keys of one direction."""

    def __init__(self, suite, secret):
        self.suite, self.secret, self.sequence = suite, secret, 0
        self.hash, cipher, length = SUITES[suite]
        self.cipher = cipher(expand(self.hash, secret, b"key", b"", length))
        self.iv = int.from_bytes(expand(self.hash, secret, b"iv", b"", 12), "big")

    def nonce(self):
        self.sequence += 1
        return (self.iv ^ (self.sequence - 1)).to_bytes(12, "big")

    def seal(self, content, data, padding=0):
        inner = data + bytes([content] if content is not None else []) + bytes(padding)
        header = bytes([DATA]) + u16(0x0303, len(inner) + 16)
        return header + self.cipher.encrypt(self.nonce(), inner, header)

    def open(self, header, data):
        inner = self.cipher.decrypt(self.nonce(), data, header).rstrip(b"\0")
        return inner[-1], inner[:-1]

    def next(self):
        return Keys(self.suite, expand(self.hash, self.secret, b"traffic upd", b"", self.hash().digest_size))


# Outcomes of a conversation other than the number of an alert.
ECHO, RESET, END = "echo", "reset", "end without an alert"


class Ended(Exception):
    """Alert of the server, or the end of the connection without one."""

    def __init__(self, outcome):
        super().__init__(outcome)
        self.outcome = outcome


class Psk:
    """Ticket of an earlier connection."""

    def __init__(self, suite, key, identity):
        self.suite, self.key, self.identity = suite, key, identity


class Client:
    def __init__(self, address):
        self.sock = socket.create_connection(address, TIMEOUT)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer, self.messages, self.transcript = b"", b"", b""
        self.tx = self.rx = self.psk = self.request = self.outcome = None
        self.shares, self.tickets = {}, []

    # --- Records.

    def send(self, *parts):
        self.outcome = None
        try:
            self.sock.sendall(b"".join(parts))
        except (BrokenPipeError, ConnectionResetError):
            pass  # What the server sent before is read next.

    def take(self, length):
        while len(self.buffer) < length:
            try:
                got = self.sock.recv(1 << 16)
            except ConnectionResetError:
                raise Ended(RESET) from None
            except socket.timeout:
                raise Ended("no answer") from None
            if not got:
                assert not self.buffer, "a part of a record"
                raise Ended(END)
            self.buffer += got
        taken, self.buffer = self.buffer[:length], self.buffer[length:]
        return taken

    def read(self):
        """Returns the content type and the data of a record. An alert or an end is raised."""
        while True:
            header = self.take(5)
            data = self.take(int.from_bytes(header[3:], "big"))
            if header[0] != CCS:
                break
            assert data == b"\1" and self.is_opening, "a late change_cipher_spec"
            self.has_ccs = True
        content = header[0]
        if self.rx is None:
            assert content in (HANDSHAKE, ALERT) and header[1:3] == u16(0x0303), f"record {header}"
        else:
            assert header[:3] == bytes([DATA]) + u16(0x0303), f"plain record {header + data}"
            content, data = self.rx.open(header, data)
        if content == ALERT:
            assert len(data) == 2 and (data[0] == 2 or data == b"\1\0"), f"alert {data}"
            try:
                raise AssertionError(f"{self.read()} after an alert")
            except Ended as ended:
                assert ended.outcome in (RESET, END), "two alerts"
            raise Ended(data[1])
        return content, data

    def next_message(self):
        """Returns a message of a handshake, which joins the transcript."""
        while True:
            if len(self.messages) >= 4:
                length = 4 + int.from_bytes(self.messages[1:4], "big")
                if len(self.messages) >= length:
                    whole, self.messages = self.messages[:length], self.messages[length:]
                    self.transcript += whole
                    return whole[0], whole[4:]
            content, data = self.read()
            assert content == HANDSHAKE, f"record {content} {data}"
            self.messages += data

    # --- Handshake.

    is_opening, has_ccs = True, False

    def hello(self, version=0x0303, session=None, suites=(0x1301, 0x1302, 0x1303), compression=b"\0", ext=(), more=b"",
              groups=(X25519, P256, P384), shares=(X25519,), psk=None, binder=None, identities=None, tail=b""):
        """Returns a ClientHello. `ext` replaces extensions by their content, or removes them for `None`; `more` follows
        them."""
        for group in shares:
            self.shares.setdefault(group, Share(group))
        self.psk = psk
        self.session = os.urandom(32) if session is None else session
        entries = [u16(group) + vec(2, self.shares[group].public) for group in shares]
        extensions = {
            43: vec(1, u16(0x0304)),
            10: vec(2, u16(*groups)),
            51: vec(2, *entries),
            13: vec(2, u16(0x0403, 0x0503, 0x0804, 0x0401)),
            45: b"\1\1",
        }
        extensions.update(ext)
        block = b"".join(u16(kind) + vec(2, data) for kind, data in extensions.items() if data is not None) + more
        head = u16(version) + os.urandom(32) + vec(1, self.session) + vec(2, u16(*suites)) + vec(1, compression)
        if psk is None:
            return message(HELLO, head + vec(2, block) + tail)
        identity = vec(2, psk.identity) + bytes(4)
        hash = SUITES[psk.suite][0]
        size = hash().digest_size
        listed = vec(2, identity if identities is None else identities)
        block += u16(41) + u16(len(listed) + 2 + 1 + size) + listed
        body = head + u16(len(block) + 2 + 1 + size) + block
        truncated = bytes([HELLO]) + (len(body) + 2 + 1 + size).to_bytes(3, "big") + body
        early = hmac.digest(bytes(size), psk.key, hash)
        key = expand(hash, self.derive(hash, early, b"res binder", b""), b"finished", b"", size)
        computed = hmac.digest(key, hash(self.transcript + truncated).digest(), hash)
        return truncated + vec(2, vec(1, computed if binder is None else binder))

    @staticmethod
    def derive(hash, secret, label, transcript):
        return expand(hash, secret, label, hash(transcript).digest(), hash().digest_size)

    def server_hello(self):
        """Reads a ServerHello or a HelloRetryRequest. Returns whether it was the former."""
        kind, body = self.next_message()
        assert kind == SERVER_HELLO and body[:2] == u16(0x0303), body
        rest = body[34:]
        assert rest[1:1 + rest[0]] == self.session, "another session"
        rest = rest[1 + rest[0]:]
        self.suite, compression, rest = int.from_bytes(rest[:2], "big"), rest[2], rest[5:]
        assert compression == 0
        found = {}
        while rest:
            kind, length = int.from_bytes(rest[:2], "big"), int.from_bytes(rest[2:4], "big")
            assert kind not in found
            found[kind], rest = rest[4:4 + length], rest[4 + length:]
        assert found.pop(43) == u16(0x0304)
        share = found.pop(51)
        self.group = int.from_bytes(share[:2], "big")
        self.is_resumed = found.pop(41, None) == b"\0\0"
        assert not found, found
        if body[2:34] == RETRY:
            assert len(share) == 2
            hash = SUITES[self.suite][0]
            first = 4 + int.from_bytes(self.transcript[1:4], "big")
            summary = message(254, hash(self.transcript[:first]).digest())
            self.transcript = summary + self.transcript[first:]
            return False
        hash = SUITES[self.suite][0]
        size = hash().digest_size
        psk = self.psk.key if self.is_resumed else bytes(size)
        early = hmac.digest(bytes(size), psk, hash)
        secret = hmac.digest(self.derive(hash, early, b"derived", b""), self.shares[self.group].secret(share[4:]), hash)
        own, peer = (self.derive(hash, secret, label, self.transcript) for label in (b"c hs traffic", b"s hs traffic"))
        self.tx, self.rx = Keys(self.suite, own), Keys(self.suite, peer)
        self.master = hmac.digest(self.derive(hash, secret, b"derived", b""), bytes(size), hash)
        return True

    def flight(self):
        """Reads the messages of the server up to Finished."""
        expected = [EXTENSIONS, FINISHED] if self.is_resumed else [EXTENSIONS, CERTIFICATE, VERIFY, FINISHED]
        while expected:
            before = self.transcript
            kind, body = self.next_message()
            if kind == REQUEST:
                self.request = body
                continue
            assert kind == expected.pop(0), kind
            if kind == EXTENSIONS:
                self.extensions = body
        assert not self.messages and body == self.finished(self.rx, before)
        hash = SUITES[self.suite][0]
        labels = b"c ap traffic", b"s ap traffic"
        own, peer = (self.derive(hash, self.master, label, self.transcript) for label in labels)
        self.open_tx, self.rx = Keys(self.suite, own), Keys(self.suite, peer)

    @staticmethod
    def finished(keys, transcript):
        hash = keys.hash
        key = expand(hash, keys.secret, b"finished", b"", hash().digest_size)
        return hmac.digest(key, hash(transcript).digest(), hash)

    def greet(self, *, first=b"", **changes):
        """Sends a ClientHello, reads the flight of the server, and leaves the client before Finished."""
        hello = self.hello(**changes)
        self.transcript += hello
        self.send(first, record(HANDSHAKE, hello))
        assert self.server_hello(), "a HelloRetryRequest"
        self.flight()
        assert self.has_ccs or not self.session

    def finish(self, padding=0, size=100, more=bytes):
        """Sends Finished in records of `size` bytes, and `more` sealed by the keys that follow."""
        last = message(FINISHED, self.finished(self.tx, self.transcript))
        self.transcript += last
        parts = [self.tx.seal(HANDSHAKE, last[at:at + size], padding) for at in range(0, len(last), size)]
        self.tx, self.is_opening = self.open_tx, False
        self.send(*parts, more())

    def open(self, **changes):
        self.greet(**changes)
        self.finish()

    # --- Open connection.

    def echo(self, data=b"hello"):
        """Exchanges `data`, and keeps tickets on the way."""
        self.send(self.tx.seal(DATA, data))
        self.await_data(data)

    def await_data(self, expected):
        received = b""
        while len(received) < len(expected):
            received += self.read_data()
        assert received == expected, "other data"
        self.outcome = ECHO

    def read_data(self):
        """Reads a record, and handles tickets and updates of keys."""
        content, data = self.read()
        if content == DATA:
            return data
        assert content == HANDSHAKE, content
        if data[0] == UPDATE:
            assert data == message(UPDATE, b"\0")
            self.rx = self.rx.next()
        else:
            assert data[0] == TICKET, data
            self.keep(data)
        return b""

    def keep(self, data):
        """Keeps tickets."""
        hash = SUITES[self.suite][0]
        secret = self.derive(hash, self.master, b"res master", self.transcript)
        while data:
            length = 4 + int.from_bytes(data[1:4], "big")
            body, data = data[4:length], data[length:]
            lifetime, nonce = int.from_bytes(body[:4], "big"), body[9:9 + body[8]]
            assert lifetime <= 604_800
            rest = body[9 + body[8]:]
            size = int.from_bytes(rest[:2], "big")
            assert rest[2 + size:] == b"\0\0", "an extension of a ticket"
            key = expand(hash, secret, b"resumption", nonce, hash().digest_size)
            self.tickets.append(Psk(self.suite, key, rest[2:2 + size]))
