//! Connection whose handshake is complete: records to plaintext, and plaintext to records.

use crate::buffers::{Buffers, Received, STAGE};
use crate::counters::Counters;
use crate::handshake::{Established, Tickets};
use crate::record::{
    ALERT, APPLICATION_DATA, Alert, HANDSHAKE, HEADER, MAX_DATA, OVERHEAD, Secret, USER_CANCELED, protected_length,
};
use linerate_service::inspect::TlsInfo;
use linerate_service::{ConnId, Transport};
use std::sync::Arc;

/// Received plaintext of a connection beyond which its records stay in the transport, so that its window closes.
const MAX_UNREAD: usize = 256 << 10;
/// Consecutive records without application data that a peer may send.
const MAX_IDLE_RECORDS: u8 = 32;
/// Maximum length of a handshake message after the handshake.
const MAX_MESSAGE: usize = 1 << 16;
/// Data up to this length is gathered with other data of the same turn into one record.
pub const SHORT: usize = 1 << 10;
/// Minimum length of a buffer of the transport that a record is shortened to fit into.
const MIN_BUFFER: usize = 256;

const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;

/// Buffers and lists of one worker that all connections use.
#[derive(Default)]
pub struct Shared {
    pub buffers: Buffers,
    pub counters: Counters,
    /// Connections with records left in the transport, and space for their plaintext.
    pub resumed: Vec<ConnId>,
    /// Connections whose service has consumed everything before close_notify.
    pub ended: Vec<ConnId>,
    /// Connections with staged data.
    pub staged: Vec<ConnId>,
    /// Connections with opened records in the transport.
    pub opened: Vec<ConnId>,
    /// Data of the last record that was not application data.
    control: Vec<u8>,
    /// Record that fits into no single buffer of the transport.
    scratch: Vec<u8>,
    /// Number of records after which keys are replaced, in tests.
    pub record_limit: Option<u64>,
}

/// Records that the transport has no space for.
#[derive(Default)]
pub struct Unsent {
    records: Vec<u8>,
    sent: usize,
}

impl Unsent {
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Sends `records`, and keeps those for which there is no space.
    pub fn send(&mut self, net: &mut impl Transport, conn: ConnId, records: &[u8], buffers: &mut Buffers) {
        let sent = if self.is_empty() { net.write(conn, records) } else { 0 };
        if sent < records.len() {
            if self.records.capacity() == 0 {
                self.records = buffers.take_records();
            }
            self.records.extend_from_slice(&records[sent..]);
        }
    }

    /// Sends more of the kept records. Returns whether none are left.
    pub fn flush(&mut self, net: &mut impl Transport, conn: ConnId, buffers: &mut Buffers) -> bool {
        if !self.is_empty() {
            self.sent += net.write(conn, &self.records[self.sent..]);
            if self.sent < self.records.len() {
                return false;
            }
            self.sent = 0;
            buffers.give_records(std::mem::take(&mut self.records));
        }
        true
    }
}

/// Progress of the peer's end of stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Data may follow.
    Open,
    /// close_notify has been received. The service has not been notified.
    Due,
    /// The service has been notified.
    Reported,
}

/// Reason why a connection ends at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// This end sends the alert.
    Local(u8),
    /// The peer has sent an alert.
    Peer(u8),
}

impl From<Alert> for Failure {
    fn from(alert: Alert) -> Self {
        Failure::Local(alert as u8)
    }
}

/// Record that arrives in several slices.
struct Partial {
    record: Arc<Vec<u8>>,
    /// Length of the record, or of its header while that is incomplete.
    needed: usize,
}

/// State of a connection with keys.
pub struct OpenConn {
    rx: Secret,
    tx: Secret,
    tickets: Option<Tickets>,
    pub received: Received,
    partial: Option<Partial>,
    /// Incomplete handshake message.
    message: Vec<u8>,
    idle_records: u8,
    /// True if records may be left in the transport because of [`MAX_UNREAD`].
    is_stalled: bool,
    pub end: End,
    /// Length of a close_notify record left in the transport until everything before it has been consumed: the
    /// transport must not finish before.
    held: usize,
    /// Length of opened records that are left in the transport until the end of the event, because a transport sends
    /// the response to an unconsumed request by a shorter path.
    opened: usize,
    /// Data for the next record.
    stage: Option<Box<[u8]>>,
    staged: usize,
    pub unsent: Unsent,
    /// True if the service found too little send space.
    pub wants_space: bool,
    /// True if the service has closed.
    pub is_closed: bool,
    is_resumed: bool,
}

impl OpenConn {
    pub fn new(established: Established, unsent: Unsent, shared: &Shared) -> Self {
        let Established { mut tx, rx, tickets, is_resumed } = established;
        shared.record_limit.into_iter().for_each(|limit| tx.limit_records(limit));
        OpenConn {
            rx,
            tx,
            tickets,
            received: Received::default(),
            partial: None,
            message: Vec::new(),
            idle_records: 0,
            is_stalled: false,
            end: End::Open,
            held: 0,
            opened: 0,
            stage: None,
            staged: 0,
            unsent,
            wants_space: false,
            is_closed: false,
            is_resumed,
        }
    }

    /// Returns the details of TLS.
    pub fn info(&self) -> TlsInfo {
        TlsInfo { version: "TLSv1.3", suite: self.tx.suite(), is_resumed: self.is_resumed }
    }

    /// Forgets the expanded keys that have not been used since the last call. Returns whether one is in use.
    pub fn rest(&mut self) -> bool {
        let [tx, rx] = [self.tx.rest(), self.rx.rest()];
        tx || rx
    }

    /// Opens the records that have arrived. Returns whether there is new plaintext.
    pub fn receive(&mut self, net: &mut impl Transport, conn: ConnId, shared: &mut Shared) -> Result<bool, Failure> {
        let before = self.received.len();
        self.consume_opened(net, conn);
        while self.end == End::Open {
            if self.received.len() >= MAX_UNREAD {
                self.is_stalled = true;
                break;
            }
            if self.partial.is_some() {
                if !self.gather(net, conn, shared)? {
                    break;
                }
                continue;
            }
            let (slice, total) = net.front(conn);
            if slice.is_empty() {
                break;
            }
            let is_last = slice.len() == total;
            let (mut opened, mut control) = (0, None);
            let mut rest = slice;
            while let Some((header, after)) = rest.split_first_chunk::<HEADER>() {
                let len = protected_length(*header)?;
                if after.len() < len || self.received.len() >= MAX_UNREAD {
                    break;
                }
                let (record, after) = after.split_at(len);
                let content = self.open(record, shared)?;
                rest = after;
                opened += HEADER + len;
                if content != APPLICATION_DATA {
                    control = Some((content, HEADER + len));
                    break;
                }
            }
            let is_read = is_last && rest.is_empty();
            if is_read && control.is_none() && self.received.len() > before {
                self.opened = opened;
                shared.opened.push(conn);
                break;
            }
            let is_incomplete = opened == 0;
            if let Some((content, len)) = control {
                self.control(net, conn, content, shared)?;
                if self.end != End::Open && self.received.len() > 0 {
                    self.held = len;
                    opened -= len;
                }
            }
            net.consume(conn, opened);
            if is_read {
                break;
            }
            if is_incomplete {
                self.partial = Some(Partial { record: shared.buffers.take(HEADER), needed: HEADER });
            }
        }
        if self.end != End::Open && self.held == 0 {
            // Nothing follows close_notify.
            net.consume(conn, usize::MAX);
        }
        Ok(self.received.len() > before)
    }

    /// Consumes the opened records in the transport.
    #[inline]
    pub fn consume_opened(&mut self, net: &mut impl Transport, conn: ConnId) {
        if self.opened > 0 {
            net.consume(conn, std::mem::take(&mut self.opened));
        }
    }

    /// Consumes the opened records in the transport and sends a record with `len` bytes of data that `write` writes, if
    /// it fits into one buffer of the transport. Otherwise returns `write`. `write` receives the first slice of
    /// received data, too.
    #[inline]
    pub fn respond<W: FnOnce(&mut [u8], &[u8])>(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        len: usize,
        write: W,
        shared: &mut Shared,
    ) -> Result<(), W> {
        if len == 0 || len > MAX_DATA || self.staged > 0 || !self.unsent.is_empty() || self.tx.is_exhausted() {
            return Err(write);
        }
        let OpenConn { opened, tx, received, .. } = self;
        let mut write = Some(write);
        let is_sent = net.respond(conn, std::mem::take(opened), len + OVERHEAD, |record| {
            if let Some(write) = write.take() {
                write(&mut record[HEADER..HEADER + len], received.front());
                tx.seal(APPLICATION_DATA, record);
            }
        });
        shared.counters.records_sent += u64::from(is_sent);
        write.map_or(Ok(()), Err)
    }

    /// Sends the first slice of received data as [`respond`](Self::respond) does. Returns its length, or 0.
    #[inline]
    pub fn respond_front(&mut self, net: &mut impl Transport, conn: ConnId, shared: &mut Shared) -> usize {
        let len = self.received.front().len();
        if self.respond(net, conn, len, |to, front| to.copy_from_slice(front), shared).is_err() {
            return 0;
        }
        self.received.consume(len, &mut shared.buffers);
        self.consumed(net, conn, shared);
        len
    }

    /// Opens a record whose plaintext follows the received data. Returns its content type.
    #[inline]
    fn open(&mut self, record: &[u8], shared: &mut Shared) -> Result<u8, Failure> {
        let OpenConn { rx, received, .. } = self;
        let control = &mut shared.control;
        let before = received.len();
        let content = received.append(record, &mut shared.buffers, |record| {
            let (content, len) = rx.open(record)?;
            if content == APPLICATION_DATA {
                return Ok((content, len));
            }
            control.clear();
            control.extend_from_slice(&record[..len]);
            Ok::<_, Alert>((content, 0))
        })?;
        self.count(content, self.received.len() - before)?;
        Ok(content)
    }

    /// Counts a record with `len` bytes of application data.
    #[inline]
    fn count(&mut self, content: u8, len: usize) -> Result<(), Failure> {
        if len > 0 {
            self.idle_records = 0;
        } else {
            self.idle_records += 1;
        }
        // Messages of a handshake are not interleaved with other records (RFC 8446 §5.1).
        let is_interleaved = content != HANDSHAKE && !self.message.is_empty();
        if self.idle_records > MAX_IDLE_RECORDS || is_interleaved {
            return Err(Alert::UnexpectedMessage.into());
        }
        Ok(())
    }

    /// Adds received bytes to the partial record, and opens it when it is complete. Returns false without bytes.
    #[cold]
    fn gather(&mut self, net: &mut impl Transport, conn: ConnId, shared: &mut Shared) -> Result<bool, Failure> {
        let Some(partial) = &mut self.partial else { return Ok(false) };
        let Some(record) = Arc::get_mut(&mut partial.record) else { return Err(Alert::InternalError.into()) };
        let slice = net.peek(conn);
        let n = slice.len().min(partial.needed - record.len());
        record.extend_from_slice(&slice[..n]);
        net.consume(conn, n);
        if n == 0 || record.len() < partial.needed {
            return Ok(n > 0);
        }
        if let Ok(header) = <[u8; HEADER]>::try_from(&record[..]) {
            let len = protected_length(header)?;
            partial.needed = HEADER + len;
            if partial.needed > record.capacity() {
                let mut larger = shared.buffers.take(partial.needed);
                Arc::get_mut(&mut larger).ok_or(Alert::InternalError)?.extend_from_slice(&header);
                shared.buffers.give(std::mem::replace(&mut partial.record, larger));
            }
            if len > 0 {
                return Ok(true);
            }
        }
        let Some(mut record) = self.partial.take().map(|partial| partial.record) else { return Ok(false) };
        let vector = Arc::get_mut(&mut record).ok_or(Alert::InternalError)?;
        let (content, len) = self.rx.open(&mut vector[HEADER..])?;
        if content == APPLICATION_DATA {
            vector.truncate(HEADER + len);
            self.received.push(record, HEADER, HEADER + len, &mut shared.buffers);
            self.count(content, len)?;
        } else {
            shared.control.clear();
            shared.control.extend_from_slice(&vector[HEADER..HEADER + len]);
            shared.buffers.give(record);
            self.count(content, 0)?;
            self.control(net, conn, content, shared)?;
        }
        Ok(true)
    }

    /// Handles the data of an alert or of handshake messages.
    #[cold]
    fn control(
        &mut self,
        net: &mut impl Transport,
        conn: ConnId,
        content: u8,
        shared: &mut Shared,
    ) -> Result<(), Failure> {
        match (content, &shared.control[..]) {
            (ALERT, [_, description]) => match *description {
                alert if alert == Alert::CloseNotify as u8 => {
                    self.end = End::Due;
                    if self.received.len() == 0 {
                        shared.ended.push(conn);
                    }
                    Ok(())
                }
                USER_CANCELED => Ok(()),
                alert => Err(Failure::Peer(alert)),
            },
            (ALERT | HANDSHAKE, []) => Err(Alert::UnexpectedMessage.into()),
            (ALERT, _) => Err(Alert::DecodeError.into()),
            (HANDSHAKE, fragment) => {
                self.message.extend_from_slice(fragment);
                self.messages(net, conn, shared)
            }
            _ => Err(Alert::UnexpectedMessage.into()),
        }
    }

    /// Handles the complete handshake messages.
    fn messages(&mut self, net: &mut impl Transport, conn: ConnId, shared: &mut Shared) -> Result<(), Failure> {
        while let Some((&[kind, a, b, c], rest)) = self.message.split_first_chunk::<4>() {
            let len = u32::from_be_bytes([0, a, b, c]) as usize;
            match kind {
                KEY_UPDATE if len != 1 => return Err(Alert::DecodeError.into()),
                NEW_SESSION_TICKET if len > MAX_MESSAGE => return Err(Alert::DecodeError.into()),
                KEY_UPDATE | NEW_SESSION_TICKET => {}
                _ => return Err(Alert::UnexpectedMessage.into()),
            }
            let Some((body, rest)) = rest.split_at_checked(len) else { return Ok(()) };
            if kind == KEY_UPDATE {
                // The key changes, so a KeyUpdate ends its record (RFC 8446 §5.1).
                if !rest.is_empty() {
                    return Err(Alert::UnexpectedMessage.into());
                }
                let is_requested = match body {
                    [0] => false,
                    [1] => true,
                    _ => return Err(Alert::IllegalParameter.into()),
                };
                self.rx = self.rx.next();
                shared.counters.key_updates_received += 1;
                if is_requested && !self.is_closed {
                    self.update_key(net, conn, shared);
                }
            } else {
                match self.tickets.as_mut().map(|tickets| tickets.keep(body)) {
                    None => return Err(Alert::UnexpectedMessage.into()),
                    Some(Err(_)) => return Err(Alert::DecodeError.into()),
                    Some(Ok(())) => shared.counters.tickets_received += 1,
                }
            }
            self.message.drain(..4 + len);
        }
        if self.message.is_empty() {
            self.message = Vec::new();
        }
        Ok(())
    }

    /// Continues after the service has consumed data.
    #[inline]
    pub fn consumed(&mut self, net: &mut impl Transport, conn: ConnId, shared: &mut Shared) {
        if self.is_stalled && self.received.len() < MAX_UNREAD / 2 {
            self.is_stalled = false;
            shared.resumed.push(conn);
        }
        if self.end == End::Due && self.received.len() == 0 {
            if std::mem::take(&mut self.held) > 0 {
                // Nothing follows close_notify.
                net.consume(conn, usize::MAX);
            }
            shared.ended.push(conn);
        }
    }

    /// Returns the number of bytes that the service may send. Without space, `writable` of the transport follows.
    #[inline]
    pub fn send_space(&mut self, net: &mut impl Transport, conn: ConnId) -> usize {
        if self.is_closed || !self.unsent.is_empty() {
            self.wants_space = true;
            return 0;
        }
        let space = net.send_space(conn).saturating_sub(self.staged);
        self.wants_space |= space == 0;
        space
    }

    /// Returns free space, of at most `max` bytes, in the data for the next record.
    #[inline]
    pub fn stage(&mut self, max: usize, conn: ConnId, shared: &mut Shared) -> &mut [u8] {
        let Shared { buffers, staged, .. } = shared;
        let stage = self.stage.get_or_insert_with(|| {
            staged.push(conn);
            buffers.take_stage()
        });
        let free = &mut stage[self.staged..];
        let n = free.len().min(max);
        &mut free[..n]
    }

    /// Adds the first `n` bytes of the last [`stage`](Self::stage) to the data for the next record.
    #[inline]
    pub fn add_staged(&mut self, net: &mut impl Transport, conn: ConnId, n: usize, shared: &mut Shared) {
        self.staged += n;
        if self.staged == STAGE {
            self.flush(net, conn, shared);
        }
    }

    /// Sends the staged data.
    #[inline]
    pub fn flush(&mut self, net: &mut impl Transport, conn: ConnId, shared: &mut Shared) {
        if let Some(stage) = self.stage.take() {
            let data = &stage[..std::mem::take(&mut self.staged)];
            // A request that has been read completely is left in the transport for the response.
            if self.opened == 0
                || self.received.len() > 0
                || self.respond(net, conn, data.len(), |to, _| to.copy_from_slice(data), shared).is_err()
            {
                self.send(net, conn, data, shared);
            }
            shared.buffers.give_stage(stage);
        }
    }

    /// Sends `data` in records, as far as possible one in each buffer of the transport.
    pub fn send(&mut self, net: &mut impl Transport, conn: ConnId, mut data: &[u8], shared: &mut Shared) {
        while !data.is_empty() {
            if self.tx.is_exhausted() {
                self.update_key(net, conn, shared);
            }
            let wanted = data.len().min(MAX_DATA) + OVERHEAD;
            let n = match net.reserve(conn, wanted) {
                Ok(buffer) if self.unsent.is_empty() && (buffer.len() == wanted || buffer.len() >= MIN_BUFFER) => {
                    let (len, n) = (buffer.len(), buffer.len() - OVERHEAD);
                    buffer[HEADER..HEADER + n].copy_from_slice(&data[..n]);
                    self.tx.seal(APPLICATION_DATA, buffer);
                    net.commit(conn, len);
                    n
                }
                _ => {
                    let n = data.len().min(SHORT);
                    self.send_record(net, conn, APPLICATION_DATA, &data[..n], shared);
                    n
                }
            };
            shared.counters.records_sent += 1;
            data = &data[n..];
        }
    }

    /// Sends one record, across several buffers of the transport if necessary.
    fn send_record(&mut self, net: &mut impl Transport, conn: ConnId, content: u8, data: &[u8], shared: &mut Shared) {
        let Shared { scratch, buffers, .. } = shared;
        scratch.clear();
        scratch.resize(HEADER, 0);
        scratch.extend_from_slice(data);
        scratch.resize(data.len() + OVERHEAD, 0);
        self.tx.seal(content, scratch);
        self.unsent.send(net, conn, scratch, buffers);
    }

    /// Sends an alert.
    pub fn send_alert(&mut self, net: &mut impl Transport, conn: ConnId, alert: u8, shared: &mut Shared) {
        let level = if alert == Alert::CloseNotify as u8 { 1 } else { 2 };
        self.send_record(net, conn, ALERT, &[level, alert], shared);
    }

    /// Sends KeyUpdate and replaces the sending key.
    #[cold]
    fn update_key(&mut self, net: &mut impl Transport, conn: ConnId, shared: &mut Shared) {
        self.send_record(net, conn, HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0], shared);
        self.tx = self.tx.next();
        shared.record_limit.into_iter().for_each(|limit| self.tx.limit_records(limit));
        shared.counters.key_updates_sent += 1;
    }

    /// Gives the buffers back.
    pub fn release(mut self, shared: &mut Shared) -> Unsent {
        self.received.clear(&mut shared.buffers);
        if let Some(stage) = self.stage.take() {
            shared.buffers.give_stage(stage);
        }
        if let Some(partial) = self.partial.take() {
            shared.buffers.give(partial.record);
        }
        self.unsent
    }
}
