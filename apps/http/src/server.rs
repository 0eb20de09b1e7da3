//! Server on the workers of a network.

use crate::body::Body;
use crate::connection::{self, Builders};
use crate::site::Site;
use hyper::{Request, Response};
use linerate_async::{AsyncService, TcpListener, Woken, spawn};
use linerate_service::time::Duration;
use linerate_service::{Stop, WorkerCtx};
use std::cell::Cell;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Limits of the memory and time of clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum connections of all workers. Further ones are reset.
    pub clients: usize,
    /// Time without sent bytes of a response after which a connection is closed.
    pub client_timeout: Duration,
    /// Maximum length of the head of a request. A longer one is refused with status 431.
    pub header_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { clients: 10_000, client_timeout: Duration::from_secs(30), header_bytes: 16 << 10 }
    }
}

/// Server of a [`Site`], shared by all workers.
#[derive(Debug)]
pub struct Server {
    site: Site,
    limits: Limits,
    clients: AtomicUsize,
    /// True once a connection was refused.
    has_refused: AtomicBool,
}

impl Server {
    /// Creates a server of `site`.
    pub fn new(site: Site, limits: Limits) -> Arc<Self> {
        Arc::new(Server { site, limits, clients: AtomicUsize::new(0), has_refused: AtomicBool::new(false) })
    }

    /// Returns the service of one worker, which serves connections to the addresses `listen`. While `stop` drains, each
    /// connection ends with the requests that it has received.
    pub fn service(self: &Arc<Self>, ctx: WorkerCtx<Woken>, listen: Vec<SocketAddr>, stop: Stop) -> AsyncService {
        let worker = Rc::new(WorkerState {
            builders: Builders::new(&self.limits),
            server: self.clone(),
            requests: Rc::default(),
        });
        let requests = worker.requests.clone();
        let main = move || async move {
            for address in listen {
                spawn(accept(address, worker.clone()));
            }
        };
        AsyncService::new(ctx, main).with_stop(stop).with_requests(requests)
    }

    /// Counts a connection, unless there are too many.
    fn enter(self: &Arc<Self>) -> Option<Client> {
        if self.clients.fetch_add(1, Ordering::Relaxed) < self.limits.clients {
            return Some(Client(self.clone()));
        }
        self.clients.fetch_sub(1, Ordering::Relaxed);
        if !self.has_refused.swap(true, Ordering::Relaxed) {
            tracing::warn!("{} clients: further ones are refused: raise --max-clients", self.limits.clients);
        }
        None
    }
}

/// Connection that counts as one of the server's.
struct Client(Arc<Server>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// State of one worker.
pub(crate) struct WorkerState {
    server: Arc<Server>,
    builders: Builders,
    requests: Rc<Cell<u64>>,
}

impl WorkerState {
    pub fn limits(&self) -> &Limits {
        &self.server.limits
    }

    pub fn builders(&self) -> &Builders {
        &self.builders
    }

    #[inline]
    pub fn respond<B>(&self, request: &Request<B>) -> Result<Response<Body>, Infallible> {
        self.requests.set(self.requests.get() + 1);
        Ok(self.server.site.respond(request))
    }
}

/// Accepts connections to `address`.
async fn accept(address: SocketAddr, worker: Rc<WorkerState>) {
    let mut listener = TcpListener::bind(address).expect("the addresses of a network differ");
    while let Ok((stream, _)) = listener.accept().await {
        let Some(client) = worker.server.enter() else {
            stream.reset();
            continue;
        };
        let worker = worker.clone();
        spawn(async move {
            let _client = client;
            connection::serve(stream, worker).await;
        });
    }
}
