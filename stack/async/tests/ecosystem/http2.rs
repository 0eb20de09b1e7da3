//! HTTP/2 between hyper and hyper.

use crate::network::{connect, pattern, run, serve};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use linerate_async::{HyperExecutor, HyperTimer, TcpStream, sleep, spawn};
use linerate_bypass::memory_nic::{Impairments, LinkConfig};
use linerate_service::time::Duration;
use std::cell::RefCell;
use std::rc::Rc;

/// Sends back the body, for `/late` after a second.
async fn echo(request: Request<Incoming>) -> hyper::Result<Response<Full<Bytes>>> {
    if request.uri().path() == "/late" {
        sleep(Duration::from_secs(1)).await;
    }
    Ok(Response::new(Full::new(request.into_body().collect().await?.to_bytes())))
}

async fn serve_http2(stream: TcpStream) {
    let mut server = hyper::server::conn::http2::Builder::new(HyperExecutor);
    let _ = server.timer(HyperTimer).serve_connection(stream, service_fn(echo)).await;
}

#[test]
fn requests_share_a_connection_and_do_not_wait_for_each_other() {
    let impairments = Impairments { loss: 0.01, delay: Duration::from_millis(1), ..Impairments::default() };
    let link = LinkConfig { impairments, ..LinkConfig::default() };
    let order = run(
        link,
        || serve(serve_http2),
        || async {
            let stream = connect().await;
            let (sender, connection) =
                hyper::client::conn::http2::handshake::<_, _, Full<Bytes>>(HyperExecutor, stream).await.unwrap();
            spawn(async move { connection.await.unwrap() });
            let order = Rc::new(RefCell::new(Vec::new()));
            let requests = ["/late", "/a", "/b"].map(|path| {
                let (mut sender, order) = (sender.clone(), order.clone());
                spawn(async move {
                    let body = Bytes::from(pattern(200_000));
                    let request = Request::post(format!("http://server{path}")).body(Full::new(body.clone())).unwrap();
                    let response = sender.send_request(request).await.unwrap();
                    assert!(response.into_body().collect().await.unwrap().to_bytes() == body);
                    order.borrow_mut().push(path);
                })
            });
            for request in requests {
                request.await.unwrap();
            }
            order.take()
        },
    );
    assert_eq!(order.len(), 3);
    assert_eq!(order[2], "/late", "{order:?}");
}
