//! Graphs: making, instantiating, updating, launching.

use std::ffi::{c_char, c_int, c_uint};

use super::launch::lose_if_told;
use crate::abi::{Handle, InstantiateParams, Out, UpdateResultInfo};
use crate::capture;
use crate::error::{GRAPH_EXEC_UPDATE_FAILURE, INVALID_VALUE, Res, STREAM_CAPTURE_UNSUPPORTED};
use crate::graph::{Exec, Graph, same_shape};
use crate::schedule::When;
use crate::sim::{Guard, lock};
use crate::stream::admit;
use crate::stubs::{Site, exports};

exports! {
    cuGraphCreate@10000 fn(_s, out: Out<Handle>, flags: c_uint) => {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        out.check()?;
        let graph = lock().graphs.add(Graph::default());
        out.put(graph)
    };
    cuGraphDestroy@10000 fn(_s, graph: Handle) => {
        let mut sim = lock();
        sim.graphs.remove(graph)?;
        sim.nodes.remove_where(|n| n.graph == graph);
        Ok(())
    };
    cuGraphInstantiate@10000, cuGraphInstantiate_v2@11000
        fn(_s, out: Out<Handle>, graph: Handle, error_node: Out<Handle>, log: Out<c_char>,
         log_size: usize) => {
        error_node.put_if(0);
        if log_size > 0 {
            log.put_if(0);
        }
        instantiate(out, graph, 0)
    };
    cuGraphInstantiateWithFlags@11040 fn(_s, out: Out<Handle>, graph: Handle, flags: u64) =>
        instantiate(out, graph, flags);
    cuGraphInstantiateWithParams@12000, cuGraphInstantiateWithParams_ptsz@12000
        fn(_s, out: Out<Handle>, graph: Handle, params: Out<InstantiateParams>) => {
        let asked = params.get()?;
        instantiate(out, graph, asked.flags)?;
        params.put(InstantiateParams { error_node: 0, result: 0, ..asked })
    };
    cuGraphExecDestroy@10000 fn(_s, exec: Handle) => lock().execs.remove(exec).map(drop);
    cuGraphExecGetFlags@12000 fn(_s, exec: Handle, flags: Out<u64>) =>
        flags.put(lock().execs.get(exec)?.flags);
    cuGraphExecUpdate@10020
        fn(_s, exec: Handle, graph: Handle, error_node: Out<Handle>, result: Out<c_int>) => {
        error_node.put_if(0);
        let outcome = update(exec, graph);
        result.put_if(if outcome.is_ok() { 0 } else { TOPOLOGY_CHANGED });
        outcome
    };
    cuGraphExecUpdate_v2@12000
        fn(_s, exec: Handle, graph: Handle, info: Out<UpdateResultInfo>) => {
        let outcome = update(exec, graph);
        let result = if outcome.is_ok() { 0 } else { TOPOLOGY_CHANGED };
        info.put_if(UpdateResultInfo { result, error_node: 0, error_from_node: 0 });
        outcome
    };
    cuGraphUpload@11010, cuGraphUpload_ptsz@11010 fn(s, exec: Handle, stream: Handle) => {
        let mut sim = lock();
        sim.execs.get(exec)?;
        sim.stream(stream, s.per_thread).map(drop)
    };
    cuGraphLaunch@10000, cuGraphLaunch_ptsz@10000 fn(s, exec: Handle, stream: Handle) =>
        launch(s, exec, stream);
}

/// `CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED`.
const TOPOLOGY_CHANGED: c_int = 2;

fn instantiate(out: Out<Handle>, graph: Handle, flags: u64) -> Res {
    out.check()?;
    let mut sim = lock();
    let nodes = sim.graphs.get(graph)?.nodes.clone();
    if sim.captures.values().any(|c| c.graph == graph) {
        return Err(INVALID_VALUE);
    }
    let exec = sim.execs.add(Exec { graph, nodes, flags, tail: When::default() });
    out.put(exec)
}

/// Takes the parameters of a graph of the same shape for the launches to come.
fn update(exec: Handle, graph: Handle) -> Res {
    let mut sim = lock();
    let new = sim.graphs.get(graph)?.nodes.clone();
    let e = sim.execs.get_mut(exec)?;
    if !same_shape(&e.nodes, &new) {
        return Err(GRAPH_EXEC_UPDATE_FAILURE);
    }
    for (node, new) in e.nodes.iter_mut().zip(new) {
        node.work = new.work;
    }
    Ok(())
}

fn launch(site: &Site, exec: Handle, stream: Handle) -> Res {
    let mut sim: Guard = lock();
    sim.execs.get(exec)?;
    let stream = sim.stream(stream, site.per_thread)?;
    let ctx = sim.streams.get(stream)?.ctx;
    sim.usable(ctx)?;
    if capture::active(&mut sim, stream)? {
        // Would become a child graph, which is not simulated.
        return capture::refuse(&mut sim, stream).and(Err(STREAM_CAPTURE_UNSUPPORTED));
    }
    let mut sim = admit(sim, stream)?;
    let when = sim.launch_graph(exec, stream)?;
    lose_if_told(&mut sim, ctx, &when)
}
