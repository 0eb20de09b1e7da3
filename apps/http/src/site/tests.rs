use super::*;
use hyper::body::Body as _;
use std::os::unix::fs::symlink;
use std::task::{Context, Poll, Waker};

fn request(method: &str, path: &str) -> Request<()> {
    Request::builder().method(method).uri(path).header(HOST, "a").body(()).unwrap()
}

/// Returns the frames of a body.
fn frames(response: Response<Body>) -> Vec<Bytes> {
    let mut body = std::pin::pin!(response.into_body());
    let mut cx = Context::from_waker(Waker::noop());
    let next = || match body.as_mut().poll_frame(&mut cx) {
        Poll::Ready(frame) => frame.map(|frame| frame.unwrap().into_data().unwrap()),
        Poll::Pending => panic!("the bytes are in memory"),
    };
    std::iter::from_fn(next).collect()
}

fn get(site: &Site, path: &str) -> (u16, Vec<u8>) {
    let response = site.respond(&request("GET", path));
    (response.status().as_u16(), frames(response).concat())
}

fn directory() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join("site").join(name);
    fs::create_dir_all(at("docs/deep")).unwrap();
    fs::write(directory.path().join("secret"), "secret").unwrap();
    for name in ["index.html", "a b.txt", "100%.txt", "docs/index.html", "docs/deep/x.css", ".hidden"] {
        fs::write(at(name), name).unwrap();
    }
    symlink("../secret", at("link")).unwrap();
    symlink("..", at("up")).unwrap();
    directory
}

fn site(directory: &tempfile::TempDir) -> Site {
    Site::load(&directory.path().join("site"), 1 << 20).unwrap()
}

#[test]
fn files_are_served_by_their_decoded_paths() {
    let directory = directory();
    let site = site(&directory);
    assert_eq!(site.files(), 5);
    for (path, name) in [
        ("/", "index.html"),
        ("/index.html?query=1", "index.html"),
        ("/a%20b.txt", "a b.txt"),
        ("/%61%20b.txt", "a b.txt"),
        ("/100%25.txt", "100%.txt"),
        ("/docs/", "docs/index.html"),
        ("/docs/deep/x.css", "docs/deep/x.css"),
    ] {
        assert_eq!(get(&site, path), (200, name.into()), "{path}");
    }
}

#[test]
fn no_path_leads_out_of_the_directory() {
    let directory = directory();
    let site = site(&directory);
    let root = directory.path().join("secret");
    for path in [
        "/../secret",
        "/%2e%2e/secret",
        "/..%2fsecret",
        "/docs/../../secret",
        "/docs/%2e%2e/index.html",
        "//index.html",
        "/./index.html",
        "/index.html%00",
        "/link",
        "/up/secret",
        "/.hidden",
        "/docs",
        "/docs/deep/",
        root.to_str().unwrap(),
    ] {
        assert_eq!(get(&site, path), (404, b"404 Not Found\n".into()), "{path}");
    }
    assert_eq!(get(&site, "/%ff").0, 400);
}

#[test]
fn head_has_the_length_and_no_body() {
    let directory = directory();
    for (site, path, length) in [(site(&directory), "/docs/deep/x.css", "15"), (Site::greeting(), "/any", "6")] {
        let response = site.respond(&request("HEAD", path));
        assert_eq!(
            (response.status(), &response.headers()[CONTENT_LENGTH]),
            (StatusCode::OK, &length.parse().unwrap())
        );
        assert!(response.body().is_end_stream());
    }
}

#[test]
fn other_methods_are_refused() {
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "BREW"] {
        let response = Site::greeting().respond(&request(method, "/"));
        assert_eq!((response.status().as_u16(), &response.headers()[ALLOW]), (405, &METHODS), "{method}");
    }
}

#[test]
fn request_without_a_host_is_refused() {
    let mut request = request("GET", "/");
    request.headers_mut().clear();
    assert_eq!(Site::greeting().respond(&request).status(), StatusCode::BAD_REQUEST);
    *request.version_mut() = Version::HTTP_10;
    assert_eq!(Site::greeting().respond(&request).status(), StatusCode::OK);
}

#[test]
fn long_body_has_frames_of_bounded_length() {
    let directory = tempfile::tempdir().unwrap();
    let contents: Vec<u8> = (0..200_000_u32).map(|i| (i ^ (i >> 8)) as u8).collect();
    fs::write(directory.path().join("long"), &contents).unwrap();
    let site = Site::load(directory.path(), 1 << 20).unwrap();
    let response = site.respond(&request("GET", "/long"));
    assert_eq!(response.body().size_hint().exact(), Some(200_000));
    let frames = frames(response);
    assert!(frames.iter().all(|frame| frame.len() <= 64 << 10) && frames.concat() == contents);
}

#[test]
fn files_beyond_the_limit_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a"), [0; 1000]).unwrap();
    assert_eq!(Site::load(directory.path(), 1000 + OVERHEAD).unwrap().files(), 1);
    for limit in [0, OVERHEAD, 999 + OVERHEAD] {
        let error = Site::load(directory.path(), limit).unwrap_err();
        assert!(matches!(error, SiteError::TooLarge { .. }), "{error}");
    }
    let missing = Site::load(&directory.path().join("b"), 1000).unwrap_err();
    assert!(missing.to_string().contains("/b: No such file"), "{missing}");
}
