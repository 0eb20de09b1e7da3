use super::*;
use abi::testing::{completion, context, list};

/// Driver that accepts two requests of a list.
unsafe extern "C" fn take_two(_: *mut c_void, first: *mut Request, bad: *mut *mut Request) -> c_int {
    // SAFETY: the test posts at least three and provides the variable.
    unsafe { *bad = (*(*first).next).next };
    libc::ENOMEM
}

/// Driver that accepts all requests and leaves `bad` unchanged.
unsafe extern "C" fn take_all(_: *mut c_void, _: *mut Request, _: *mut *mut Request) -> c_int {
    0
}

/// Driver with one completion of each kind; returns their number.
unsafe extern "C" fn complete(queue: *mut c_void, most: c_int, into: *mut Completion) -> c_int {
    if queue.is_null() {
        return -1;
    }
    let found = [completion(0, true), completion(0, true), completion(0, false), completion(5, true)];
    let count = found.len().min(usize::try_from(most).unwrap());
    for (index, one) in found.into_iter().take(count).enumerate() {
        // SAFETY: the test provides room for that many.
        unsafe { into.add(index).write(one) };
    }
    count as c_int
}

/// Performs a program's calls through the functions of the context.
fn run(context: &Context) {
    let (mut requests, mut bad) = (list::<5>(), null_mut());
    let first = requests.as_mut_ptr();
    for (post, expected) in
        [(&context.post_send, libc::ENOMEM), (&context.post_receive, 0), (&context.post_shared, libc::ENOMEM)]
    {
        // SAFETY: functions of this type, of the test or of the library.
        let post: Post = unsafe { transmute(post.get()) };
        // SAFETY: the list and `bad` are live.
        assert_eq!(unsafe { post(null_mut(), first, &mut bad) }, expected);
    }
    // SAFETY: as above.
    let poll: Poll = unsafe { transmute(context.poll.get()) };
    let mut into: [_; 8] = std::array::from_fn(|_| completion(0, false));
    for (queue, most, expected) in [(first.cast(), 8, 4), (first.cast(), 1, 1), (null_mut(), 8, -1)] {
        // SAFETY: there is room for 8.
        assert_eq!(unsafe { poll(queue, most, into.as_mut_ptr()) }, expected);
    }
}

#[test]
fn calls_are_counted_and_forwarded() {
    let driver = [complete as Poll as *mut c_void, take_two as Post as _, take_two as Post as _, take_all as Post as _];
    let first = context(driver);
    run(&first);
    assert_eq!(COUNTS.json(), expected([0; 8]));
    watch(&first);
    run(&first);
    let once = [2, 1, 10, 7, 1, 3, 1, 0];
    assert_eq!(COUNTS.json(), expected(once));
    // A second protection domain changes nothing. Another device of the driver is also counted.
    watch(&first);
    let second = context(driver);
    watch(&second);
    run(&second);
    assert_eq!(COUNTS.json(), expected(once.map(|count| 2 * count)));
    // Another driver is not replaced.
    let other = context([driver[0], driver[1], driver[3], driver[3]]);
    watch(&other);
    assert_eq!(other.post_send.get(), driver[3]);
    assert_eq!(COUNTS.json(), expected([4, 2, 20, 14, 2, 6, 2, 1]));
}

#[test]
fn lists_are_counted_up_to_first_rejected_request() {
    let mut requests = list::<3>();
    let mut elsewhere = list::<1>();
    let (first, last, other) = (&raw mut requests[0], &raw mut requests[2], &raw mut elsewhere[0]);
    for (first, end, expected) in [
        (first, null_mut(), (3, 27)),
        (first, last, (2, 10)),
        (first, first, (0, 0)),
        (first, other, (3, 27)),
        (null_mut(), null_mut(), (0, 0)),
    ] {
        // SAFETY: the lists are live and terminated.
        assert_eq!(unsafe { count(first, end) }, expected);
    }
}

#[test]
fn missing_libibverbs_is_tolerated() {
    assert!(next(c"ibv_alloc_pd_of_another_name").is_null());
}

fn expected(counts: [u64; 8]) -> String {
    let [requests, posts, bytes, buffers, requests_completed, buffers_completed, failed, unseen] = counts;
    format!(
        r#"{{"requests":{requests},"posts":{posts},"bytes":{bytes},"buffers":{buffers},"requests_completed":{requests_completed},"buffers_completed":{buffers_completed},"failed":{failed},"unseen":{unseen}}}"#
    )
}
