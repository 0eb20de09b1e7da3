//! Tasks on workers over RDMA: simulated devices, with a sleeping worker at each end.

use linerate_async::{AsyncService, TcpListener, TcpStream, Woken, sleep, spawn};
use linerate_rdma::{Adapter, Config, Connect, Mode, Started, Worker, WorkerParts};
use linerate_roce::testing::{DeviceConfig, Fabric, FabricConfig, SimDevice};
use linerate_service::time::{Clock, Duration};
use linerate_service::{Stop, WorkerCtx};
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Runs a worker, which sleeps when idle, until `stop`. `main` receives the address at which the worker listens.
fn run<F: Future<Output = ()> + 'static>(
    device: &Arc<SimDevice>,
    mode: Mode,
    listen: &[SocketAddr],
    stop: &Stop,
    main: impl FnOnce(Option<SocketAddr>) -> F + Send + 'static,
) -> (Option<SocketAddr>, JoinHandle<()>) {
    let config = Config { rests: true, max_connections: 8, connect: Connect::Exchange, mode, ..Config::default() };
    let adapter = Adapter::open(device, &config, listen, 1).unwrap();
    let address = adapter.listening().first().copied();
    let Started { connector, mut workers, app_sender } = adapter.start::<Woken>().unwrap();
    let WorkerParts { worker, config, parts, channels } = workers.pop().unwrap();
    let stop = stop.clone();
    let thread = thread::spawn(move || {
        let over = Stop::default();
        let connector = thread::spawn({
            let over = over.clone();
            move || connector.run(&Clock::start(), || over.is_stopped(), || {})
        });
        let ctx = WorkerCtx { worker: 0, workers: 1, app_sender };
        let service = AsyncService::new(ctx, move || main(address));
        drop(Worker::new(worker, config, parts, channels, service).run(&Clock::start(), &stop));
        over.stop();
        connector.join().unwrap().unwrap();
    });
    (address, thread)
}

async fn serve(address: SocketAddr) {
    let mut listener = TcpListener::bind(address).unwrap();
    while let Ok((mut stream, _)) = listener.accept().await {
        spawn(async move {
            while let Ok(bytes) = stream.read_bytes().await
                && !bytes.is_empty()
                && stream.write_bytes(bytes).await.is_ok()
            {}
        });
    }
}

async fn converse(server: SocketAddr) {
    let mut stream = TcpStream::connect(server).await.unwrap();
    let block: Vec<u8> = (0..100_000_u32).map(|n| (n ^ n >> 8) as u8).collect();
    for size in [1, 100, 1000, block.len()] {
        let (mut received, mut buffer) = (Vec::new(), vec![0; block.len()]);
        let mut sent = 0;
        while received.len() < size {
            if sent < size {
                sent += stream.write(&block[sent..size]).await.unwrap();
            }
            let n = stream.read(&mut buffer).await.unwrap();
            received.extend_from_slice(&buffer[..n]);
        }
        assert!(received == block[..size], "{size} bytes");
    }
    sleep(Duration::from_millis(1)).await;
    stream.shutdown();
    assert!(stream.read_bytes().await.unwrap().is_empty());
}

fn echoes(mode: Mode) {
    let fabric = Fabric::new(FabricConfig { mode: linerate_roce::testing::Mode::Auto, ..FabricConfig::default() });
    let device = |number| fabric.device("model", DeviceConfig::roce([127, 0, 0, number].into()));
    let [client, server] = [1, 2].map(device);
    let stop = Stop::default();
    let listen = [SocketAddr::from(([127, 0, 0, 2], 0))];
    let (address, serving) = run(&server, mode, &listen, &stop, |address| serve(address.unwrap()));
    let (_, conversing) = run(&client, mode, &[], &stop, {
        let stop = stop.clone();
        move |_| async move {
            let succeeded = spawn(converse(address.unwrap())).await;
            stop.stop();
            succeeded.unwrap();
        }
    });
    conversing.join().unwrap();
    serving.join().unwrap();
}

#[test]
fn tasks_converse_over_connected_queue_pairs() {
    echoes(Mode::Send);
}

#[test]
fn tasks_converse_over_datagrams() {
    echoes(Mode::Ud);
}
