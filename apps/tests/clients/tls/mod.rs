//! TLS with OpenSSL, curl, redis-cli and the loads.

mod certificates;
mod openssl;
mod services;
