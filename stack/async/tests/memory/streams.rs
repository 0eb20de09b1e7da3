//! Streams: integrity, closing, back-pressure and cancellation.

use crate::network::{Network, connect, echo, pattern, read_exact, read_to_end, run, run_ideal, serve};
use linerate_async::{ConnError, ConnErrorReason, TcpStream, sleep, spawn, timeout, yield_now};
use linerate_bypass::memory_nic::{Impairments, LinkConfig};
use linerate_service::Bytes;
use linerate_service::time::Duration;
use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

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
        // Each call receives or sends in another way.
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
fn dropped_stream_delivers_written_bytes_and_discards_input() {
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

/// Answers each request of 4 bytes with 8 bytes, in two parts.
async fn answer_in_parts(mut stream: TcpStream) {
    while let Ok(request) = stream.read_bytes().await
        && !request.is_empty()
        && stream.write_all(b"head").await.is_ok()
        && stream.write_bytes(request).await.is_ok()
    {}
}

/// Performs 101 requests to `answer`, and returns the frames that the server sends for the last 100.
fn frames_of_100_requests<F: Future<Output = ()> + 'static>(answer: impl Fn(TcpStream) -> F + 'static) -> u64 {
    let done = Rc::new(Cell::new(0));
    let mut network = Network::new(LinkConfig::default(), || serve(answer), {
        let done = done.clone();
        || async move {
            let mut stream = connect().await;
            loop {
                stream.write_all(b"ping").await.unwrap();
                assert_eq!(read_exact(&mut stream, 8).await, b"headping");
                done.set(done.get() + 1);
            }
        }
    });
    network.run_until(|| done.get() == 1);
    let before = network.frames_of_server();
    network.run_until(|| done.get() == 101);
    network.frames_of_server() - before
}

#[test]
fn response_takes_one_segment() {
    async fn answer(mut stream: TcpStream) {
        while let Ok(request) = stream.read_bytes().await
            && !request.is_empty()
            && stream.write_all(&[b"head", &request[..]].concat()).await.is_ok()
        {}
    }
    assert_eq!(frames_of_100_requests(answer), 100);
}

#[test]
fn response_in_parts_takes_one_segment() {
    assert_eq!(frames_of_100_requests(answer_in_parts), 100);
}

#[test]
fn request_and_response_of_different_tasks_are_complete() {
    run_ideal(
        || {
            serve(|stream| async move {
                let (mut reader, mut writer) = stream.into_split();
                let requests = Rc::new(RefCell::new(Vec::new()));
                let writing = spawn({
                    let requests = requests.clone();
                    async move {
                        loop {
                            let request: Option<Bytes> = requests.borrow_mut().pop();
                            match request {
                                Some(request) => writer.write_bytes(request).await.unwrap(),
                                None => yield_now().await,
                            }
                        }
                    }
                });
                loop {
                    let request = reader.read_bytes().await.unwrap();
                    if request.is_empty() {
                        break writing.abort();
                    }
                    requests.borrow_mut().push(request);
                }
            })
        },
        || async {
            let mut stream = connect().await;
            for n in 0..100_u8 {
                stream.write_all(&[n; 5]).await.unwrap();
                assert_eq!(read_exact(&mut stream, 5).await, [n; 5]);
            }
            stream.shutdown();
            assert_eq!(read_to_end(&mut stream).await, b"");
        },
    );
}

/// Waker that counts, and wakes a task.
struct Counting {
    task: Waker,
    count: AtomicUsize,
}

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.task.wake_by_ref();
    }
}

#[test]
fn future_with_a_waker_of_its_own_is_woken_by_it() {
    run_ideal(
        || serve(echo),
        || async {
            let mut stream = connect().await;
            let task = poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
            let counting = Arc::new(Counting { task, count: AtomicUsize::new(0) });
            for n in 1..=3 {
                stream.write_all(b"ping").await.unwrap();
                let waker = Waker::from(counting.clone());
                let mut reading = Box::pin(stream.read_bytes());
                let received = poll_fn(|_| reading.as_mut().poll(&mut Context::from_waker(&waker))).await.unwrap();
                assert_eq!((&received[..], counting.count.load(Ordering::Relaxed)), (&b"ping"[..], n));
                // The same stream then waits with the waker of the task.
                drop(reading);
                stream.write_all(b"pong").await.unwrap();
                assert_eq!(read_exact(&mut stream, 4).await, b"pong");
                assert_eq!(counting.count.load(Ordering::Relaxed), n);
            }
        },
    );
}

#[test]
fn short_slices_that_are_kept_do_not_change() {
    let kept = run_ideal(
        || serve(echo),
        || async {
            let mut stream = connect().await;
            let mut kept: Vec<Bytes> = Vec::new();
            for n in 0..=255_u8 {
                stream.write_all(&[n; 200]).await.unwrap();
                let mut received = 0;
                while received < 200 {
                    let bytes = stream.read_bytes().await.unwrap();
                    received += bytes.len();
                    kept.push(bytes);
                }
            }
            kept
        },
    );
    let expected: Vec<u8> = (0..=255_u8).flat_map(|n| [n; 200]).collect();
    assert_eq!(kept.iter().flat_map(|bytes| bytes.to_vec()).collect::<Vec<u8>>(), expected);
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
