//! Libraries of the async ecosystem on tasks: HTTP/2 by hyper, gRPC by tonic, TLS by tokio-rustls.

mod grpc;
mod http2;
#[path = "../memory/network.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod network;
mod tls;
