use super::*;

fn transfer(loss: f64) -> Transfer {
    Transfer { loss, delay_us: 10, bits_per_second: 10_000_000_000, bytes: 4 << 20, seed: 7 }
}

#[test]
fn nothing_is_sent_again_without_loss() {
    for transport in Transport::ALL {
        let counts = run(transport, &transfer(0.0)).unwrap();
        assert_eq!((counts.resent(), counts.lost), (0.0, 0), "{transport:?}: {counts:?}");
        assert!(counts.delivered >= 4 << 20);
    }
}

#[test]
fn selective_retransmission_repeats_lost_bytes_and_go_back_n_those_in_flight() {
    let resent = |transport| {
        let counts = run(transport, &transfer(0.01)).unwrap();
        assert_eq!(counts, run(transport, &transfer(0.01)).unwrap(), "the same seed has the same result");
        assert!(counts.lost > 10, "{counts:?}");
        counts.resent() / (counts.lost as f64 / counts.frames as f64)
    };
    // The window is 128 packets, and one repetition may cover several losses.
    let rc = resent(Transport::Rc);
    assert!((60.0..128.0).contains(&rc), "{rc}");
    assert!(resent(Transport::UdGoBackN) > 4.0);
    for transport in [Transport::Ud, Transport::Native] {
        let times = resent(transport);
        assert!((0.9..1.6).contains(&times), "{transport:?}: {times}");
    }
}
