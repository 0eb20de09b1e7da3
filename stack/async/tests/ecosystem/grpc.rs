//! gRPC by tonic over hyper, without a runtime. Messages and methods are written by hand, as `protoc` would.

use crate::network::{connect, run_ideal, serve};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::http::uri::PathAndQuery;
use hyper::service::service_fn;
use hyper::{Request as HttpRequest, Response as HttpResponse};
use linerate_async::{HyperExecutor, TcpStream, spawn};
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::{Service, tokio_stream};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

type Codec = ProstCodec<Text, Text>;

#[derive(Clone, PartialEq, prost::Message)]
struct Text {
    #[prost(string, tag = "1")]
    text: String,
}

fn text(text: &str) -> Text {
    Text { text: text.to_owned() }
}

/// Method with one response.
struct Greet;

impl Service<Request<Text>> for Greet {
    type Response = Response<Text>;
    type Error = Status;
    type Future = Ready<Result<Response<Text>, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Text>) -> Self::Future {
        let name = request.into_inner().text;
        ready(match name.is_empty() {
            true => Err(Status::invalid_argument("the name is empty")),
            false => Ok(Response::new(text(&format!("hello {name}")))),
        })
    }
}

/// Method with a response for each character.
struct Spell;

impl Service<Request<Text>> for Spell {
    type Response = Response<tokio_stream::Iter<std::vec::IntoIter<Result<Text, Status>>>>;
    type Error = Status;
    type Future = Ready<Result<Self::Response, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Text>) -> Self::Future {
        let word = request.into_inner().text;
        let letters: Vec<_> = word.chars().map(|letter| Ok(text(&letter.to_string()))).collect();
        ready(Ok(Response::new(tokio_stream::iter(letters))))
    }
}

async fn dispatch(request: HttpRequest<Incoming>) -> Result<HttpResponse<Body>, Infallible> {
    let mut grpc = tonic::server::Grpc::new(Codec::default());
    Ok(match request.uri().path() {
        "/test.Greeter/Greet" => grpc.unary(Greet, request).await,
        "/test.Greeter/Spell" => grpc.server_streaming(Spell, request).await,
        path => Status::unimplemented(path.to_owned()).into_http(),
    })
}

async fn serve_grpc(stream: TcpStream) {
    let server = hyper::server::conn::http2::Builder::new(HyperExecutor);
    let _ = server.serve_connection(stream, service_fn(dispatch)).await;
}

/// Connection of a client.
#[derive(Clone)]
struct Channel(SendRequest<Body>);

impl Service<HttpRequest<Body>> for Channel {
    type Response = HttpResponse<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = hyper::Result<Self::Response>>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<hyper::Result<()>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: HttpRequest<Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

async fn client() -> tonic::client::Grpc<Channel> {
    let (sender, connection) = handshake(HyperExecutor, connect().await).await.unwrap();
    spawn(async move { connection.await.unwrap() });
    let mut client = tonic::client::Grpc::with_origin(Channel(sender), "http://10.0.0.2:7".parse().unwrap());
    client.ready().await.unwrap();
    client
}

fn method(name: &str) -> PathAndQuery {
    format!("/test.Greeter/{name}").parse().unwrap()
}

#[test]
fn unary_and_streaming_methods_are_served() {
    run_ideal(
        || serve(serve_grpc),
        || async {
            let mut client = client().await;
            let reply = client.unary(Request::new(text("world")), method("Greet"), Codec::default()).await.unwrap();
            assert_eq!(reply.into_inner().text, "hello world");

            let letters = client.server_streaming(Request::new(text("abc")), method("Spell"), Codec::default()).await;
            let mut letters = letters.unwrap().into_inner();
            for letter in ["a", "b", "c"] {
                assert_eq!(letters.message().await.unwrap().unwrap().text, letter);
            }
            assert_eq!(letters.message().await.unwrap(), None);
        },
    );
}

#[test]
fn errors_reach_the_client_with_their_codes() {
    run_ideal(
        || serve(serve_grpc),
        || async {
            let mut client = client().await;
            let error = client.unary(Request::new(text("")), method("Greet"), Codec::default()).await.unwrap_err();
            assert_eq!((error.code(), error.message()), (Code::InvalidArgument, "the name is empty"));
            let error = client.unary(Request::new(text("a")), method("Missing"), Codec::default()).await.unwrap_err();
            assert_eq!(error.code(), Code::Unimplemented);
        },
    );
}
