"""Keys that a client spreads over two servers, of which one drains: hash_client.py PORT PORT, the first of which drains once this
program has said `drain it` and been given a line. Ends with a traceback where something is not so."""

import socket
import sys

from pymemcache import Client, HashClient

PATIENCE = 20
PORTS = [int(port) for port in sys.argv[1:]]
KEYS = [f"key:{n}" for n in range(200)]


def sharded():
    # A server that refuses is left out at once, and its keys are the other's.
    return HashClient(
        [("127.0.0.1", port) for port in PORTS],
        retry_attempts=0,
        ignore_exc=True,
        default_noreply=False,
        timeout=PATIENCE,
        connect_timeout=PATIENCE,
    )


def items(port):
    client = Client(("127.0.0.1", port), timeout=PATIENCE, connect_timeout=PATIENCE)
    n = int(client.stats()[b"curr_items"])
    client.close()
    return n


old = sharded()
assert all(old.set(key, key) for key in KEYS)
assert all(old.get(key) == key.encode() for key in KEYS)
shares = [items(port) for port in PORTS]
assert sum(shares) == len(KEYS) and min(shares) > len(KEYS) / 4, shares

print("drain it", flush=True)
sys.stdin.readline()

# Who is connected notices nothing.
assert all(old.get(key) == key.encode() for key in KEYS)
# Who connects is refused, finds what the other server has, and misses the rest, which then go there.
new = sharded()
found = sum(new.get(key) is not None for key in KEYS)
assert found == shares[1], (found, shares)
assert all(new.set(key, key) for key in KEYS)
assert all(new.get(key) == key.encode() for key in KEYS)
assert items(PORTS[1]) == len(KEYS)
try:
    socket.create_connection(("127.0.0.1", PORTS[0]), PATIENCE)
    raise AssertionError("it takes connections")
except ConnectionRefusedError:
    pass

for client in [*old.clients.values(), *new.clients.values()]:
    client.close()
print("all is well")
