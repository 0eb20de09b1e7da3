//! Service callbacks, messages, and inspection.

mod event_order;
mod inspect;
mod lingering_close;
mod messages;
mod portable_services;
mod sleep;
