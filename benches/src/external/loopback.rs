//! Servers on the loopback interface that neither choose a port nor report readiness.

use crate::external::process::Error;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time until a server listens.
const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until `program` listens at `address`.
pub fn wait_for(address: SocketAddr, program: &str, interrupted: &AtomicBool) -> Result<(), Error> {
    let until = Instant::now() + PATIENCE;
    while let Err(error) = TcpStream::connect(address) {
        if interrupted.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        if Instant::now() > until {
            return Err(Error::Start { program: program.to_owned(), error });
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
