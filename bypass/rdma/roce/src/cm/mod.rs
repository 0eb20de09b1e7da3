//! Connection manager (IBA 12), with the private data header of the RDMA IP CM service (annex A11).
