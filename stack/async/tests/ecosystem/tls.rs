//! TLS by tokio-rustls.

use crate::network::{connect, pattern, run_ideal, serve};
use linerate_async::{TcpStream, spawn};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

const NAME: &str = "server.test";

/// Returns a server with a certificate of [`NAME`], and a client that trusts it.
fn ends() -> (TlsAcceptor, TlsConnector) {
    let certified = rcgen::generate_simple_self_signed([NAME.to_owned()]).unwrap();
    let certificate = certified.cert.der().clone();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(default_provider());
    let server = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let server = server.with_no_client_auth().with_single_cert(vec![certificate.clone()], key).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let client = client.with_root_certificates(roots).with_no_client_auth();
    (Arc::new(server).into(), Arc::new(client).into())
}

async fn echo(acceptor: TlsAcceptor, stream: TcpStream) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let (mut reader, mut writer) = tokio::io::split(stream);
    tokio::io::copy(&mut reader, &mut writer).await.unwrap();
    writer.shutdown().await.unwrap();
}

#[test]
fn encrypted_stream_is_echoed_until_its_end() {
    let (acceptor, connector) = ends();
    let sent = pattern(500_000);
    let received = run_ideal(move || serve(move |stream| echo(acceptor.clone(), stream)), {
        let sent = sent.clone();
        move || async move {
            let name = ServerName::try_from(NAME).unwrap();
            let stream = connector.connect(name, connect().await).await.unwrap();
            let (mut reader, mut writer) = tokio::io::split(stream);
            spawn(async move {
                writer.write_all(&sent).await.unwrap();
                writer.shutdown().await.unwrap();
            });
            let mut received = Vec::new();
            reader.read_to_end(&mut received).await.unwrap();
            received
        }
    });
    assert!(received == sent);
}

#[test]
fn certificate_of_another_name_is_refused() {
    let (acceptor, connector) = ends();
    let error = run_ideal(
        move || serve(move |stream| echo(acceptor.clone(), stream)),
        move || async move {
            let name = ServerName::try_from("other.test").unwrap();
            connector.connect(name, connect().await).await.unwrap_err().to_string()
        },
    );
    assert!(error.contains("certificate"), "{error}");
}
