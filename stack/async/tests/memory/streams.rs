//! Streams: integrity, closing, back-pressure and cancellation.

use crate::network::{connect, echo, pattern, read_exact, read_to_end, run, run_ideal, serve};
use linerate_async::{ConnError, ConnErrorReason, TcpStream, sleep, spawn, timeout};
use linerate_bypass::Bytes;
use linerate_bypass::memory_nic::{Impairments, LinkConfig};
use linerate_bypass::time::Duration;
use std::cell::Cell;
use std::io;
use std::rc::Rc;

const MILLISECOND: Duration = Duration::from_millis(1);

#[test]
fn long_stream_is_echoed_over_a_lossy_link() {
    let impairments = Impairments { loss: 0.02, delay: MILLISECOND, ..Impairments::default() };
    let link = LinkConfig { impairments, ..LinkConfig::default() };
    let sent = pattern(1_000_000);
    let received = run(link, || serve(echo), {
        let sent = sent.clone();
        || async move {
            let (mut reader, mut writer) = connect().await.into_split();
            let n = sent.len();
            spawn(async move { writer.write_bytes(Bytes::from(sent)).await.unwrap() });
            let mut received = Vec::new();
            while received.len() < n {
                received.extend_from_slice(&reader.read_bytes().await.unwrap());
            }
            received
        }
    });
    assert!(received == sent);
}

#[test]
fn all_ways_to_receive_and_send_carry_the_same_bytes() {
    async fn serve_one(mut stream: TcpStream) {
        // One way for each line.
        let line = stream.fill_buf().await.unwrap().to_vec();
        stream.consume(3);
        let rest = stream.fill_buf().await.unwrap();
        assert_eq!(rest, &line[3..]);
        stream.consume(1);
        let mut buffer = [0; 4];
        assert_eq!(stream.read(&mut buffer).await.unwrap(), 4);
        assert_eq!(buffer, line[4..8]);
        assert_eq!(stream.read(&mut []).await.unwrap(), 0);
        let rest = stream.read_bytes().await.unwrap();
        assert_eq!(rest[..], line[8..]);
        stream.write_all(&line[..4]).await.unwrap();
        stream.write_bytes(Bytes::new()).await.unwrap();
        stream.write_bytes(Bytes::from(line[4..].to_vec())).await.unwrap();
    }
    let received = run_ideal(
        || serve(serve_one),
        || async {
            let mut stream = connect().await;
            stream.write_all(b"one two three").await.unwrap();
            read_to_end(&mut stream).await
        },
    );
    assert_eq!(received, b"one two three");
}

#[test]
fn half_closed_stream_still_receives() {
    async fn count(mut stream: TcpStream) {
        let n = read_to_end(&mut stream).await.len();
        assert!(stream.read_bytes().await.unwrap().is_empty(), "the end of a stream is permanent");
        stream.write_all(n.to_string().as_bytes()).await.unwrap();
    }
    let received = run_ideal(
        || serve(count),
        || async {
            let mut stream = connect().await;
            stream.write_all(&pattern(5000)).await.unwrap();
            stream.shutdown();
            let error = stream.write_all(b"x").await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
            read_to_end(&mut stream).await
        },
    );
    assert_eq!(received, b"5000");
}

#[test]
fn dropped_stream_delivers_what_was_written_and_discards_input() {
    async fn greet(mut stream: TcpStream) {
        // The client's bytes are never read.
        stream.write_all(b"goodbye").await.unwrap();
    }
    let received = run_ideal(
        || serve(greet),
        || async {
            let mut stream = connect().await;
            stream.write_all(&pattern(10_000)).await.unwrap();
            read_to_end(&mut stream).await
        },
    );
    assert_eq!(received, b"goodbye");
}

#[test]
fn stream_with_one_half_dropped_goes_on_in_the_other_direction() {
    async fn count(mut stream: TcpStream) {
        let n = read_to_end(&mut stream).await.len();
        stream.write_all(n.to_string().as_bytes()).await.unwrap();
    }
    let received = run_ideal(
        || serve(count),
        || async {
            let (mut reader, mut writer) = connect().await.into_split();
            writer.write_all(b"three").await.unwrap();
            drop(writer);
            reader.read_bytes().await.unwrap().to_vec()
        },
    );
    assert_eq!(received, b"5");
}

#[test]
fn reset_stream_fails_at_the_peer() {
    let error = run_ideal(
        || {
            serve(|mut stream| async move {
                read_exact(&mut stream, 1).await;
                stream.reset();
            })
        },
        || async {
            let mut stream = connect().await;
            stream.write_all(b"x").await.unwrap();
            let error = stream.read_bytes().await.unwrap_err();
            assert_eq!(stream.write_all(b"x").await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
            error
        },
    );
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    let source = error.get_ref().and_then(|source| source.downcast_ref::<ConnError>()).unwrap();
    assert_eq!(source.reason, ConnErrorReason::Reset);
    assert!(error.to_string().ends_with("to 10.0.0.2:7: reset by peer"), "{error}");
}

#[test]
fn dropped_read_loses_no_bytes() {
    let received = run_ideal(
        || {
            serve(|mut stream| async move {
                sleep(MILLISECOND * 10).await;
                stream.write_all(b"late").await.unwrap();
            })
        },
        || async {
            let mut stream = connect().await;
            let mut timeouts = 0;
            loop {
                match timeout(MILLISECOND, stream.read_bytes()).await {
                    Ok(received) => {
                        assert!(timeouts >= 9, "{timeouts}");
                        return received.unwrap().to_vec();
                    }
                    Err(_) => timeouts += 1,
                }
            }
        },
    );
    assert_eq!(received, b"late");
}

#[test]
fn writer_waits_for_a_peer_that_does_not_read() {
    let sent = Rc::new(Cell::new(0));
    let stalled = run_ideal(
        || {
            serve(|mut stream| async move {
                sleep(Duration::from_secs(5)).await;
                let received = read_to_end(&mut stream).await;
                assert!(received == pattern(10_000).repeat(1000));
                stream.write_all(b"all").await.unwrap();
            })
        },
        {
            let sent = sent.clone();
            || async move {
                let (mut reader, mut writer) = connect().await.into_split();
                let writing = spawn({
                    let sent = sent.clone();
                    async move {
                        for _ in 0..1000 {
                            writer.write_all(&pattern(10_000)).await.unwrap();
                            sent.set(sent.get() + 1);
                        }
                    }
                });
                sleep(Duration::from_secs(4)).await;
                let stalled = sent.get();
                writing.await.unwrap();
                assert_eq!(&reader.read_bytes().await.unwrap()[..], b"all");
                stalled
            }
        },
    );
    assert!(stalled > 0 && stalled < 500, "{stalled} of 1000 blocks were accepted");
    assert_eq!(sent.get(), 1000);
}

#[test]
fn dropped_write_leaves_the_stream_usable() {
    run_ideal(
        || {
            serve(|mut stream| async move {
                sleep(Duration::from_secs(2)).await;
                let received = read_to_end(&mut stream).await;
                // A part of the cancelled write, from its beginning, and then the later write.
                let (whole, part) = (pattern(10_000_000), received.len() - 4);
                assert!(part > 0 && received[..part] == whole[..part] && &received[part..] == b"done");
                stream.write_all(b"ok").await.unwrap();
            })
        },
        || async {
            let mut stream = connect().await;
            let bytes = Bytes::from(pattern(10_000_000));
            assert!(timeout(Duration::from_secs(1), stream.write_bytes(bytes)).await.is_err());
            stream.write_all(b"done").await.unwrap();
            stream.shutdown();
            assert_eq!(read_to_end(&mut stream).await, b"ok");
        },
    );
}

#[test]
fn dropped_connection_attempt_is_reset_once_established() {
    let link = LinkConfig {
        impairments: Impairments { delay: MILLISECOND * 5, ..Impairments::default() },
        ..LinkConfig::default()
    };
    let open = Rc::new(Cell::new(0));
    run(
        link,
        {
            let open = open.clone();
            move || {
                serve(move |mut stream| {
                    let open = open.clone();
                    async move {
                        open.set(open.get() + 1);
                        assert_eq!(stream.read_bytes().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
                        open.set(open.get() - 1);
                    }
                })
            }
        },
        || async {
            assert!(timeout(MILLISECOND, connect()).await.is_err());
            sleep(MILLISECOND * 100).await;
        },
    );
    // The reset may arrive before the server has accepted the connection.
    assert_eq!(open.get(), 0);
}
