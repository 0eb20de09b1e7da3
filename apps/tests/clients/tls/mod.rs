//! TLS with OpenSSL, curl, redis-cli and the loads.

pub mod certificates;
mod conversations;
mod openssl;
mod services;
