use super::loader::OVERHEAD;
use super::*;
use hyper::body::Body as _;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

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
        "/docs/deep",
        "/docs/deep/",
        root.to_str().unwrap(),
    ] {
        assert_eq!(get(&site, path), (404, b"404 Not Found\n".into()), "{path}");
    }
    assert_eq!(get(&site, "/%ff").0, 400);
}

#[test]
fn links_within_the_directory_are_followed() {
    let directory = tempfile::tempdir().unwrap();
    // The layout of a Kubernetes volume of a ConfigMap, with a nested path.
    let volume = directory.path().join("volume");
    let version = volume.join("..2026_01_01_00_00_00.1");
    fs::create_dir_all(version.join("nested")).unwrap();
    fs::write(version.join("index.html"), "home").unwrap();
    fs::write(version.join("nested/x.css"), "p {}").unwrap();
    symlink("..2026_01_01_00_00_00.1", volume.join("..data")).unwrap();
    symlink("..data/index.html", volume.join("index.html")).unwrap();
    symlink("..data/nested", volume.join("nested")).unwrap();
    let files = [("/", &b"home"[..]), ("/nested/x.css", b"p {}")];
    let served = |paths: &[(&str, &[u8])]| {
        let site = Site::load(&volume, 1 << 20).unwrap();
        paths.iter().for_each(|&(path, contents)| assert_eq!(get(&site, path), (200, contents.into()), "{path}"));
        site.files()
    };
    assert_eq!(served(&files), 2);
    // Links that are not followed: to a directory that contains them, out and in again, to themselves, to nothing.
    for (target, name) in [
        ("..", "..data/nested/loop"),
        (".", "here"),
        ("../volume/index.html", "outside"),
        (version.join("index.html").to_str().unwrap(), "absolute"),
        ("self", "self"),
        ("nothing", "dangling"),
        ("/dev/null", "device"),
    ] {
        symlink(target, volume.join(name)).unwrap();
    }
    symlink("../index.html", version.join("nested/again")).unwrap();
    // `nested/loop` is the directory of the version, which no other directory of the path is.
    assert_eq!(served(&[files[0], files[1], ("/nested/again", b"home"), ("/nested/loop/index.html", b"home")]), 4);
}

#[test]
fn path_of_a_directory_is_redirected_to_its_index() {
    let directory = directory();
    let site = site(&directory);
    fs::create_dir(directory.path().join("site/a b")).unwrap();
    fs::write(directory.path().join("site/a b/index.html"), "").unwrap();
    let spaced = Site::load(&directory.path().join("site"), 1 << 20).unwrap();
    for (site, path, location) in [
        (&site, "/docs", "/docs/"),
        (&site, "/docs?a=b&c", "/docs/?a=b&c"),
        (&spaced, "/a%20b", "/a%20b/"),
        (&site, "http://a.test/docs", "/docs/"),
    ] {
        for method in ["GET", "HEAD"] {
            let response = site.respond(&request(method, path));
            let found = (response.status().as_u16(), response.headers()[LOCATION].to_str().unwrap());
            assert_eq!(found, (301, location), "{method} {path}");
        }
    }
    assert_eq!(get(&site, "//docs").0, 404);
}

#[test]
fn client_that_has_the_file_gets_no_copy() {
    let directory = directory();
    let name = directory.path().join("site/index.html");
    let set = |seconds| {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        File::options().write(true).open(&name).unwrap().set_modified(at).unwrap();
    };
    set(1_000_000_000);
    let site = site(&directory);
    let ask = |method: &str, fields: &[(&str, &str)]| {
        let mut request = request(method, "/");
        for (field, value) in fields {
            request.headers_mut().append(field.parse::<hyper::header::HeaderName>().unwrap(), value.parse().unwrap());
        }
        site.respond(&request)
    };
    let fresh = ask("GET", &[]);
    assert_eq!(fresh.headers()[LAST_MODIFIED], "Sun, 09 Sep 2001 01:46:40 GMT");
    let tag = fresh.headers()[ETAG].to_str().unwrap().to_owned();
    let (weak, list) = (format!("W/{tag}"), format!("\"a\" ,W/{tag}"));
    let (none, since) = ("if-none-match", "if-modified-since");
    let (same, before) = ("Sun, 09 Sep 2001 01:46:40 GMT", "Sun, 09 Sep 2001 01:46:39 GMT");
    for (fields, status) in [
        (&[(none, &tag[..])][..], 304),
        (&[(none, &weak)], 304),
        (&[(none, &list)], 304),
        (&[(none, "*")], 304),
        (&[(none, "\"a\""), (none, &tag)], 304),
        (&[(none, "\"a\"")], 200),
        (&[(none, "")], 200),
        (&[(none, tag.trim_matches('"'))], 200),
        (&[(since, same)], 304),
        (&[(since, "Sunday, 09-Sep-01 01:46:40 GMT")], 304),
        (&[(since, before)], 200),
        (&[(since, "yesterday")], 200),
        // The tag takes precedence (RFC 9110 section 13.2.2).
        (&[(none, "\"a\""), (since, same)], 200),
        (&[(none, &tag), (since, before)], 304),
    ] {
        for method in ["GET", "HEAD"] {
            let response = ask(method, fields);
            assert_eq!(response.status().as_u16(), status, "{method} {fields:?}");
            assert!(response.headers()[ETAG] == tag && response.headers()[LAST_MODIFIED] == same, "{fields:?}");
            assert_eq!(response.body().is_end_stream(), status == 304 || method == "HEAD", "{method} {fields:?}");
        }
    }
    let tag_of = |site: &Site| site.respond(&request("GET", "/")).headers()[ETAG].clone();
    // A time without a date, or in the future.
    set(300_000_000_000);
    let same_contents = Site::load(&directory.path().join("site"), 1 << 20).unwrap();
    assert_eq!(tag_of(&same_contents), tag);
    let date = same_contents.respond(&request("GET", "/")).headers()[LAST_MODIFIED].clone();
    assert!(httpdate::parse_http_date(date.to_str().unwrap()).unwrap() <= SystemTime::now());
    fs::write(&name, "other").unwrap();
    assert_ne!(tag_of(&Site::load(&directory.path().join("site"), 1 << 20).unwrap()), tag);
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
fn request_without_one_host_is_refused() {
    let mut request = request("GET", "/");
    request.headers_mut().clear();
    assert_eq!(Site::greeting().respond(&request).status(), StatusCode::BAD_REQUEST);
    *request.version_mut() = Version::HTTP_10;
    assert_eq!(Site::greeting().respond(&request).status(), StatusCode::OK);
    for version in [Version::HTTP_10, Version::HTTP_11, Version::HTTP_2] {
        *request.version_mut() = version;
        request.headers_mut().insert(HOST, "a".parse().unwrap());
        assert_eq!(Site::greeting().respond(&request).status(), StatusCode::OK);
        request.headers_mut().append(HOST, "a".parse().unwrap());
        assert_eq!(Site::greeting().respond(&request).status(), StatusCode::BAD_REQUEST, "{version:?}");
    }
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
        assert!(error.to_string().ends_with("bytes of memory: raise --dir-memory"), "{error}");
    }
    let missing = Site::load(&directory.path().join("b"), 1000).unwrap_err();
    assert!(missing.to_string().contains("/b: No such file"), "{missing}");
}
