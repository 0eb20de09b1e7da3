//! Small services: echo (RFC 862), discard (RFC 863) and chargen (RFC 864); and a wrapper that adds processing time to
//! a service.

mod busy;
mod chargen;
mod discard;
mod echo;
mod service_time;

pub use busy::Busy;
pub use chargen::Chargen;
pub use discard::Discard;
pub use echo::Echo;
pub use service_time::ServiceTime;
