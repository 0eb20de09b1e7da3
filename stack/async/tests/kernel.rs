//! Tasks on a worker over kernel sockets: sleeping workers, other threads, draining.

use linerate_async::{AsyncService, TcpListener, TcpStream, draining, sleep, spawn, timeout};
use linerate_kernel::{Config, Worker, bind};
use linerate_service::{Stop, Summary, WorkerCtx};
use std::future::{Future, poll_fn};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);

/// Worker on its own thread.
struct Running {
    address: SocketAddr,
    stop: Stop,
    thread: JoinHandle<Summary>,
}

impl Running {
    fn start<F: Future<Output = ()> + 'static>(main: impl FnOnce(SocketAddr) -> F + Send + 'static) -> Self {
        let config = Config { listen: vec!["127.0.0.1:0".parse().unwrap()], ..Config::default() };
        let (app_sender, mut sockets) = bind(&config, 1).unwrap();
        let sockets = sockets.remove(0);
        let address = sockets.tcp_addrs()[0];
        let stop = Stop::default();
        stop.set_workers(1);
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || {
                let ctx = WorkerCtx { worker: 0, workers: 1, app_sender };
                let service = AsyncService::new(ctx, move || main(address)).with_stop(stop.clone());
                Worker::new(sockets, service).run(&stop).1
            }
        });
        Running { address, stop, thread }
    }

    fn client(&self) -> std::net::TcpStream {
        let stream = std::net::TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    }

    fn finish(self) -> Summary {
        self.stop.stop();
        self.thread.join().unwrap()
    }
}

async fn serve<F: Future<Output = ()> + 'static>(address: SocketAddr, serve: impl Fn(TcpStream) -> F) {
    let mut listener = TcpListener::bind(address).unwrap();
    while let Ok((stream, _)) = listener.accept().await {
        spawn(serve(stream));
    }
}

async fn echo(mut stream: TcpStream) {
    while let Ok(bytes) = stream.read_bytes().await
        && !bytes.is_empty()
        && stream.write_bytes(bytes).await.is_ok()
    {}
}

#[test]
fn long_stream_is_echoed() {
    let server = Running::start(|address| serve(address, echo));
    let mut stream = server.client();
    let sent: Vec<u8> = (0..5_000_000_usize).map(|i| (i ^ (i >> 8)) as u8).collect();
    let writer = {
        let (mut stream, sent) = (stream.try_clone().unwrap(), sent.clone());
        std::thread::spawn(move || {
            stream.write_all(&sent).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        })
    };
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    writer.join().unwrap();
    assert!(received == sent, "{} bytes came back", received.len());
    let summary = server.finish();
    assert_eq!((summary.accepted, summary.finished), (1, 1));
}

#[test]
fn task_connects_and_sends_to_another_worker() {
    let server = Running::start(|address| serve(address, echo));
    let address = server.address;
    let (sender, outcome) = channel();
    let client = Running::start(move |_| async move {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"hello").await.unwrap();
        sender.send(stream.read_bytes().await.unwrap().to_vec()).unwrap();
    });
    assert_eq!(outcome.recv_timeout(DEADLINE).unwrap(), b"hello");
    client.finish();
    server.finish();
}

/// Values that one thread sends and a task receives.
#[derive(Default)]
struct Channel {
    values: Vec<u8>,
    waker: Option<Waker>,
}

#[test]
fn other_thread_wakes_a_task_of_a_sleeping_worker() {
    let shared = Arc::new(Mutex::new(Channel::default()));
    let server = Running::start({
        let shared = shared.clone();
        move |address| {
            serve(address, move |mut stream| {
                let shared = shared.clone();
                async move {
                    for _ in 0..100 {
                        let value = poll_fn(|cx| {
                            let mut channel = shared.lock().unwrap();
                            match channel.values.pop() {
                                Some(value) => Poll::Ready(value),
                                None => {
                                    channel.waker = Some(cx.waker().clone());
                                    Poll::Pending
                                }
                            }
                        })
                        .await;
                        stream.write_all(&[value]).await.unwrap();
                    }
                }
            })
        }
    });
    let mut stream = server.client();
    for value in 0..100 {
        let waker = {
            let mut channel = shared.lock().unwrap();
            channel.values.push(value);
            channel.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
        let mut received = [0];
        stream.read_exact(&mut received).unwrap();
        assert_eq!(received, [value]);
    }
    server.finish();
}

#[test]
fn sleep_ends_the_sleep_of_its_worker() {
    let server = Running::start(|address| {
        serve(address, |mut stream| async move {
            while let Ok(bytes) = stream.read_bytes().await
                && !bytes.is_empty()
            {
                sleep(Duration::from_millis(3)).await;
                stream.write_bytes(bytes).await.unwrap();
            }
        })
    });
    let mut stream = server.client();
    for value in 0..20 {
        let start = std::time::Instant::now();
        stream.write_all(&[value]).unwrap();
        let mut received = [0];
        stream.read_exact(&mut received).unwrap();
        assert!(start.elapsed() >= Duration::from_millis(3));
    }
    server.finish();
}

#[test]
fn draining_worker_lets_tasks_finish() {
    let server = Running::start(|address| {
        serve(address, |mut stream| async move {
            stream.write_all(b"hello, ").await.unwrap();
            draining().await;
            stream.write_all(b"and goodbye").await.unwrap();
        })
    });
    let mut stream = server.client();
    let mut received = vec![0; 7];
    stream.read_exact(&mut received).unwrap();
    assert_eq!(received, b"hello, ");
    server.stop.drain();
    stream.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"hello, and goodbye");
    drop(stream);
    let start = std::time::Instant::now();
    while server.stop.remaining() != Some(0) {
        assert!(start.elapsed() < DEADLINE, "connections remain: {:?}", server.stop.remaining());
        std::thread::yield_now();
    }
    let summary = server.finish();
    assert_eq!((summary.accepted, summary.finished), (1, 1));
}

#[test]
fn stopping_worker_drops_its_tasks() {
    struct Dropped(std::sync::mpsc::Sender<()>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
        }
    }
    let (sender, dropped) = channel();
    let server = Running::start(|address| {
        serve(address, move |mut stream| {
            let guard = Dropped(sender.clone());
            async move {
                let _guard = guard;
                stream.write_all(b"x").await.unwrap();
                let _ = timeout(DEADLINE, stream.read_bytes()).await;
            }
        })
    });
    let mut stream = server.client();
    stream.read_exact(&mut [0]).unwrap();
    let summary = server.finish();
    assert_eq!(summary.broken, 1);
    dropped.recv_timeout(DEADLINE).unwrap();
}
