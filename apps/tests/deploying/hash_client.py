"""Usage: hash_client.py IP:PORT IP:PORT. Distributes keys over two memcached servers. The first server drains after this program has
printed `drain it` and before it receives a line. A failed check ends the program with a traceback."""

import socket
import sys

from pymemcache import Client, HashClient

TIMEOUT = 20
SERVERS = [(ip, int(port)) for ip, port in (server.rsplit(":", 1) for server in sys.argv[1:])]
KEYS = [f"key:{n}" for n in range(200)]


def sharded():
    # A server that refuses connections is removed at once, and its keys move to the other.
    return HashClient(
        SERVERS,
        retry_attempts=0,
        ignore_exc=True,
        default_noreply=False,
        timeout=TIMEOUT,
        connect_timeout=TIMEOUT,
    )


def items(server):
    client = Client(server, timeout=TIMEOUT, connect_timeout=TIMEOUT)
    n = int(client.stats()[b"curr_items"])
    client.close()
    return n


old = sharded()
assert all(old.set(key, key) for key in KEYS)
assert all(old.get(key) == key.encode() for key in KEYS)
shares = [items(server) for server in SERVERS]
assert sum(shares) == len(KEYS) and min(shares) > len(KEYS) / 4, shares

print("drain it", flush=True)
sys.stdin.readline()

# Open connections are unaffected.
assert all(old.get(key) == key.encode() for key in KEYS)
# New connections are refused: keys of the other server are found, and the rest are missed and stored there.
new = sharded()
found = sum(new.get(key) is not None for key in KEYS)
assert found == shares[1], (found, shares)
assert all(new.set(key, key) for key in KEYS)
assert all(new.get(key) == key.encode() for key in KEYS)
assert items(SERVERS[1]) == len(KEYS)
try:
    socket.create_connection(SERVERS[0], TIMEOUT)
    raise AssertionError("the draining server accepts connections")
except ConnectionRefusedError:
    pass

for client in [*old.clients.values(), *new.clients.values()]:
    client.close()
print("all is well")
