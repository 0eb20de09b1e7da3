//! Certificates that are accepted or refused, in either direction.

use crate::common::{Authority, Ends, SERVER};
use linerate_service::{CloseReason, ConnId, ConnectError, Origin, Service, Transport};
use linerate_tls::{ClientAuth, ClientOptions, ServerOptions, Tls, TlsClient, TlsServer};

/// Service that records its events, and opens a connection at a client.
#[derive(Debug, Default)]
struct Probe {
    is_client: bool,
    opened: usize,
    failed: Option<(u64, ConnectError)>,
    closed: Option<CloseReason>,
}

impl Service for Probe {
    type Conn = ();
    type Message = ();

    fn start(&mut self, net: &mut impl Transport) {
        if self.is_client {
            net.connect(SERVER.parse().unwrap(), 7);
        }
    }

    fn opened(&mut self, net: &mut impl Transport, conn: ConnId, _: Origin) {
        self.opened += 1;
        if self.is_client {
            net.close(conn);
        }
    }

    fn failed(&mut self, _: &mut impl Transport, token: u64, error: ConnectError) {
        self.failed = Some((token, error));
    }

    fn peer_closed(&mut self, net: &mut impl Transport, conn: ConnId, (): &mut ()) {
        net.close(conn);
    }

    fn closed(&mut self, _: &mut impl Transport, _: ConnId, (): (), reason: CloseReason) {
        self.closed = Some(reason);
    }
}

/// Runs one connection until the client has ended it.
fn connect(server: ServerOptions, client: &ClientOptions) -> Ends<Tls<Probe>, Tls<Probe>> {
    let server = TlsServer::new(server).unwrap().into();
    let client = TlsClient::new(client).unwrap().into();
    let probe = Probe { is_client: true, ..Probe::default() };
    let mut ends = Ends::new(Tls::new(client, probe), Tls::new(server, Probe::default()));
    ends.turn_until("the connection ends", |ends| {
        let (client, server) = (ends.client.service(), ends.server.service());
        (client.service().failed.is_some() || client.service().closed.is_some())
            && (server.counters().failed > 0 || server.service().closed.is_some())
    });
    ends
}

/// Asserts that the client refuses the server.
fn assert_server_is_refused(server: ServerOptions, client: &ClientOptions) {
    let ends = connect(server, client);
    let (client, server) = (ends.client.service(), ends.server.service());
    assert_eq!((client.service().failed, client.service().opened), (Some((7, ConnectError::Handshake)), 0));
    assert_eq!((client.counters().failed, server.counters().failed, server.service().opened), (1, 1, 0));
}

#[test]
fn server_with_a_certificate_of_the_authority_is_accepted() {
    let authority = Authority::new();
    let ends = connect(authority.server_options(), &authority.client_options());
    let (client, server) = (ends.client.service().service(), ends.server.service().service());
    assert_eq!((client.closed, server.closed), (Some(CloseReason::Finished), Some(CloseReason::Finished)));
    let named =
        ServerOptions { identities: vec![authority.identity("named", &["a.test"])], ..ServerOptions::default() };
    let client = ClientOptions { name: Some("a.test".to_owned()), ..authority.client_options() };
    assert_eq!(connect(named, &client).client.service().service().failed, None);
}

#[test]
fn server_with_another_authority_or_name_is_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    assert_server_is_refused(other.server_options(), &authority.client_options());
    let client = ClientOptions { name: Some("a.test".to_owned()), ..authority.client_options() };
    assert_server_is_refused(authority.server_options(), &client);
    let insecure = ClientOptions { insecure: true, ..ClientOptions::default() };
    assert_eq!(connect(other.server_options(), &insecure).client.service().service().failed, None);
}

#[test]
fn client_is_verified_as_required() {
    let (authority, other) = (Authority::new(), Authority::new());
    let with = |authority: &Authority| Some(authority.identity("client", &["client.test"]));
    for (auth, identity, is_accepted) in [
        (ClientAuth::Required, with(&authority), true),
        (ClientAuth::Required, None, false),
        (ClientAuth::Required, with(&other), false),
        (ClientAuth::Optional, with(&authority), true),
        (ClientAuth::Optional, None, true),
        (ClientAuth::Optional, with(&other), false),
    ] {
        let server = ServerOptions { client_ca: Some(authority.ca()), client_auth: auth, ..authority.server_options() };
        let ends = connect(server, &ClientOptions { identity, ..authority.client_options() });
        let (client, server) = (ends.client.service(), ends.server.service());
        assert_eq!(server.service().opened, usize::from(is_accepted));
        // The client has sent everything before the server verifies it.
        let expected = if is_accepted { CloseReason::Finished } else { CloseReason::Reset };
        assert_eq!((client.service().opened, client.service().closed), (1, Some(expected)));
        assert_eq!(client.counters().alerts_received.len(), usize::from(!is_accepted));
    }
}
