//! Finds DPDK with pkg-config, compiles the shim with DPDK's flags, and generates bindings of its header.
//!
//! A missing dependency is reported in one line by `cargo::error` instead of a panic.

use std::path::PathBuf;
use std::process::Command;

const NO_DPDK: &str = "DPDK 22.11 or later was not found (pkg-config libdpdk): apt-get install libdpdk-dev pkg-config";
const NO_CLANG: &str = "libclang, which generates the bindings of DPDK, was not found: apt-get install libclang-dev";

/// DPDK functions that are called directly: simple arguments, unchanged from 22.11 to 24.11.
const FUNCTIONS: &[&str] = &[
    "rte_eal_hotplug_add",
    "rte_eal_hotplug_remove",
    "rte_eth_allmulticast_enable",
    "rte_eth_dev_close",
    "rte_eth_dev_get_port_by_name",
    "rte_eth_dev_rx_intr_ctl_q_get_fd",
    "rte_eth_dev_rx_intr_disable",
    "rte_eth_dev_rx_intr_enable",
    "rte_eth_dev_set_mtu",
    "rte_eth_dev_stop",
    "rte_eth_find_next_owned_by",
    "rte_eth_promiscuous_disable",
    "rte_eth_promiscuous_enable",
    "rte_free",
    "rte_mempool_avail_count",
    "rte_strerror",
    "rte_thread_register",
    "rte_thread_unregister",
    "rte_version",
    "rte_zmalloc_socket",
];

fn main() {
    if let Err(missing) = build() {
        println!("cargo::error={missing}");
    }
}

fn build() -> Result<(), String> {
    for file in ["build.rs", "shim/shim.h", "shim/shim.c"] {
        println!("cargo::rerun-if-changed={file}");
    }
    // pkg-config passes the link arguments to cargo, which watches the variables that affect it.
    let dpdk = pkg_config::Config::new().atleast_version("22.11").probe("libdpdk");
    dpdk.map_err(|_| NO_DPDK.to_owned())?;
    let flags = cflags()?;

    let mut shim = cc::Build::new();
    shim.file("shim/shim.c").flag("-std=gnu11").warnings(true).extra_warnings(true);
    for flag in &flags {
        // DPDK's headers count as system headers, without warnings.
        match flag.strip_prefix("-I") {
            Some(directory) => shim.flag("-isystem").flag(directory),
            None => shim.flag(flag),
        };
    }
    shim.try_compile("linerate_dpdk_shim").map_err(|error| format!("the shim does not compile: {error}"))?;

    bindings(&flags)
}

/// Returns all of DPDK's compiler flags: `-include rte_config.h` and `-march` change its inline functions.
fn cflags() -> Result<Vec<String>, String> {
    let pkg_config = std::env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output = Command::new(pkg_config).args(["--cflags", "libdpdk"]).output().map_err(|_| NO_DPDK.to_owned())?;
    let text = String::from_utf8(output.stdout).map_err(|_| NO_DPDK.to_owned())?;
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

fn bindings(flags: &[String]) -> Result<(), String> {
    let builder = bindgen::Builder::default()
        .header("shim/shim.h")
        .clang_args(flags)
        .allowlist_function("lr_.*")
        .allowlist_function(FUNCTIONS.join("|"))
        .allowlist_var("LR_.*")
        // The shim's structures are generated with fields. DPDK's, which differ between releases, are opaque.
        .blocklist_type("rte_.*")
        .raw_line("#[repr(C)] pub struct rte_mbuf { _opaque: [u8; 0] }")
        .raw_line("#[repr(C)] pub struct rte_mempool { _opaque: [u8; 0] }")
        .prepend_enum_name(false)
        .use_core()
        .layout_tests(false)
        .generate_comments(false)
        .parse_callbacks(Box::new(bindgen::CargoCallbacks::new()));
    // bindgen panics if it finds no libclang.
    std::panic::set_hook(Box::new(|_| ()));
    let generated = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| builder.generate()));
    let _ = std::panic::take_hook();
    let generated = generated.map_err(|_| NO_CLANG.to_owned())?.map_err(|error| format!("bindgen: {error}"))?;
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo gave no OUT_DIR")?);
    generated.write_to_file(out.join("bindings.rs")).map_err(|error| format!("the bindings: {error}"))
}
