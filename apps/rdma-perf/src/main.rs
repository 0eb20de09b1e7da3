//! `linerate-rdma-perf`: see the crate's documentation.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    linerate_rdma_perf::main()
}
