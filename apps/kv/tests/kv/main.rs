//! The service as seen by its clients, the protocols compared with Redis and memcached, short runs of the fuzz targets,
//! and memory.

mod corpus;
mod lossy;
mod memcached;
mod redis;
mod resident;
mod service;

use redis::reply;
use service::net;

/// Encodes a request of a Redis client.
fn request<T: AsRef<[u8]>>(args: &[T]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        let arg = arg.as_ref();
        bytes.extend(format!("${}\r\n", arg.len()).bytes());
        bytes.extend(arg);
        bytes.extend(b"\r\n");
    }
    bytes
}
