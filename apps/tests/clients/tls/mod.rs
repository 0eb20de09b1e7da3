//! TLS with OpenSSL, curl, redis-cli and the loads.

pub mod certificates;
mod openssl;
mod services;
