//! Tasks: order, fairness, panics and time.

use crate::network::{connect, echo, pattern, read_exact, read_to_end, run_ideal, serve};
use linerate_async::{JoinError, TcpStream, now, sleep, sleep_until, spawn, timeout, yield_now};
use linerate_service::time::Duration;
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;

async fn panics() {
    panic!("this panic is the intention of the test");
}

#[test]
fn panic_resets_the_connections_of_its_task_only() {
    async fn serve_one(mut stream: TcpStream) {
        let request = read_exact(&mut stream, 1).await;
        assert!(request != b"!", "this request panics, as the test intends");
        echo(stream).await;
    }
    run_ideal(
        || serve(serve_one),
        || async {
            let (mut good, mut bad) = (connect().await, connect().await);
            good.write_all(b"?").await.unwrap();
            bad.write_all(b"!").await.unwrap();
            assert_eq!(bad.read_bytes().await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
            good.write_all(b"hello").await.unwrap();
            assert_eq!(read_exact(&mut good, 5).await, b"hello");
            // New connections are served, too.
            let mut new = connect().await;
            new.write_all(b"?again").await.unwrap();
            assert_eq!(read_exact(&mut new, 5).await, b"again");
        },
    );
}

#[test]
fn stream_of_a_panicking_task_is_reset() {
    // The stream is not held by the future that panics, but dropped with the task.
    async fn serve_one(stream: TcpStream) {
        let holder = async {
            let _stream = stream;
            std::future::pending::<()>().await;
        };
        let (mut holder, mut panicking) = (Box::pin(holder), Box::pin(panics()));
        std::future::poll_fn(|cx| {
            let _ = holder.as_mut().poll(cx);
            panicking.as_mut().poll(cx)
        })
        .await;
    }
    let error = run_ideal(|| serve(serve_one), || async { connect().await.read_bytes().await.unwrap_err() });
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn join_handle_reports_output_panic_and_abort() {
    run_ideal(
        || async {},
        || async {
            assert_eq!(spawn(async { 7 }).await, Ok(7));
            assert_eq!(spawn(panics()).await, Err(JoinError::Panicked));
            let pending = spawn(std::future::pending::<()>());
            yield_now().await;
            pending.abort();
            assert_eq!(pending.await, Err(JoinError::Aborted));
            let unstarted = spawn(async {});
            unstarted.abort();
            assert_eq!(unstarted.await, Err(JoinError::Aborted));
        },
    );
}

#[test]
fn aborted_task_closes_its_streams() {
    let received = run_ideal(
        || {
            serve(|mut stream| async move {
                let task = spawn(async move {
                    stream.write_all(b"partial").await.unwrap();
                    std::future::pending::<()>().await;
                });
                sleep(Duration::from_millis(1)).await;
                task.abort();
            })
        },
        || async { read_to_end(&mut connect().await).await },
    );
    assert_eq!(received, b"partial");
}

#[test]
fn task_with_much_input_does_not_delay_others() {
    let length = 100_000;
    let read = Rc::new(Cell::new(0));
    let read_at_echo = run_ideal(
        {
            let read = read.clone();
            move || {
                serve(move |mut stream| {
                    let read = read.clone();
                    async move {
                        if read_exact(&mut stream, 1).await == b"e" {
                            return echo(stream).await;
                        }
                        // Waits until all bytes have arrived, then reads them one by one without waiting.
                        sleep(Duration::from_secs(1)).await;
                        for _ in 0..length {
                            read_exact(&mut stream, 1).await;
                            read.set(read.get() + 1);
                        }
                    }
                })
            }
        },
        move || async move {
            let (mut busy, mut quick) = (connect().await, connect().await);
            busy.write_all(b"b").await.unwrap();
            quick.write_all(b"e").await.unwrap();
            spawn(async move {
                busy.write_all(&pattern(length)).await.unwrap();
                std::future::pending::<()>().await;
            });
            while read.get() == 0 {
                sleep(Duration::from_micros(10)).await;
            }
            quick.write_all(b"hello").await.unwrap();
            assert_eq!(read_exact(&mut quick, 5).await, b"hello");
            read.get()
        },
    );
    assert!(read_at_echo < length / 2, "the echo waited for {read_at_echo} operations of another task");
}

#[test]
fn task_that_wakes_itself_lets_others_run() {
    run_ideal(
        || async {
            spawn(async {
                loop {
                    yield_now().await;
                }
            });
            serve(echo).await;
        },
        || async {
            let mut stream = connect().await;
            stream.write_all(b"hello").await.unwrap();
            assert_eq!(read_exact(&mut stream, 5).await, b"hello");
        },
    );
}

#[test]
fn elapsed_timers_let_others_run() {
    const LIMIT: u32 = 1_000_000;
    let rounds = Rc::new(Cell::new(0));
    let rounds_at_echo = run_ideal(
        {
            let rounds = rounds.clone();
            move || async move {
                spawn(async move {
                    let past = now();
                    // The limit ends the test if no other task runs.
                    while rounds.get() < LIMIT {
                        sleep(Duration::ZERO).await;
                        sleep_until(past).await;
                        assert!(timeout(Duration::ZERO, std::future::pending::<()>()).await.is_err());
                        rounds.set(rounds.get() + 1);
                    }
                });
                serve(echo).await;
            }
        },
        move || async move {
            let mut stream = connect().await;
            stream.write_all(b"hello").await.unwrap();
            assert_eq!(read_exact(&mut stream, 5).await, b"hello");
            rounds.get()
        },
    );
    assert!(rounds_at_echo < LIMIT, "the echo waited for {rounds_at_echo} rounds of another task");
}

#[test]
fn stream_is_refused_by_another_worker() {
    let passed = Rc::new(RefCell::new(None));
    run_ideal(
        {
            let passed = passed.clone();
            || {
                serve(move |stream| {
                    *passed.borrow_mut() = Some(stream);
                    std::future::pending()
                })
            }
        },
        || async move {
            let mut own = connect().await;
            while passed.borrow().is_none() {
                sleep(Duration::from_millis(1)).await;
            }
            let mut foreign: TcpStream = passed.take().unwrap();
            assert_eq!(spawn(async move { foreign.shutdown() }).await, Err(JoinError::Panicked));
            own.write_all(b"hello").await.unwrap();
        },
    );
}

#[test]
fn tasks_run_in_the_order_of_their_wake_ups() {
    run_ideal(
        || async {},
        || async {
            let order = Rc::new(RefCell::new(Vec::new()));
            let tasks: Vec<_> = (0..10)
                .map(|n| {
                    let order = order.clone();
                    spawn(async move {
                        order.borrow_mut().push(n);
                        sleep(Duration::from_millis(20 - n)).await;
                        order.borrow_mut().push(n);
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            let expected: Vec<u64> = (0..10).chain((0..10).rev()).collect();
            assert_eq!(*order.borrow(), expected);
        },
    );
}

#[test]
fn sleep_is_exact_in_virtual_time() {
    run_ideal(
        || async {},
        || async {
            let start = now();
            sleep(Duration::from_millis(30)).await;
            let first = now().since(start);
            assert!(first >= Duration::from_millis(30) && first < Duration::from_millis(31), "{first:?}");
            sleep_until(start).await;
            assert_eq!(now().since(start), first);
            let done = timeout(Duration::from_secs(1), async { 1 }).await;
            assert_eq!(done, Ok(1));
            assert!(timeout(Duration::from_secs(1), std::future::pending::<()>()).await.is_err());
            let second = now().since(start);
            assert!(second >= first + Duration::from_secs(1) && second < first + Duration::from_millis(1001));
        },
    );
}
