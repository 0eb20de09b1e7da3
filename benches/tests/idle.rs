//! Memory of idle connections. This is the only test of its binary, because other allocations would disturb it.
#![forbid(unsafe_code)]

use linerate_benches::engine::idle::measure;
use linerate_bypass::memory_nic::MemoryPacket;
use linerate_stack::{NativeEngine, SmoltcpEngine};

/// Maximum bytes per connection of the native engine: 256 MB for a million.
const NATIVE: f64 = 256.0;

#[test]
fn memory_of_idle_connections_is_measured() {
    let (idle, agreed) = measure::<SmoltcpEngine>(500, 64, true).unwrap();
    // A socket, two buffers of 64 KB of which a page or two are resident, and overhead.
    for bytes in [idle.first_half, idle.second_half, idle.bytes] {
        assert!((4_000.0..200_000.0).contains(&bytes), "{idle:?}");
    }
    assert_eq!(idle.packets_held, 0, "each request was echoed, and each echo acknowledged");
    assert!(agreed.is_some_and(|agreed| agreed.sack && agreed.window_scale.is_some()), "{agreed:?}");
    let (idle, _) = measure::<NativeEngine<MemoryPacket>>(1 << 14, 64, true).unwrap();
    // Fixed costs are in the first half.
    assert!((200.0..=NATIVE).contains(&idle.second_half), "{idle:?}");
    assert_eq!(idle.packets_held, 0, "an idle connection holds no packet");
}
