// The common beginning of every shader. Before including it, a shader has #version 450, #extension GL_GOOGLE_include_directive : require,
// and #define PUSH as the name of its block in params.h.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_EXT_control_flow_attributes : require  // [[unroll]], because arrays in registers need constant indices

#include "params.h"

layout(local_size_x_id = 0) in;
layout(push_constant) uniform Push { PUSH p; };

const uint LANES = gl_WorkGroupSize.x;
#define LANE gl_LocalInvocationIndex

// Returns the number of this workgroup in the list of the dispatch. The host folds the list into x and y and may cut it into several
// dispatches. Folding leaves up to x - 1 groups too many, so every main() begins with `if (group() >= p.groups) return;`.
uint group() { return p.first_group + gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x; }

// Return the sum and the maximum over the workgroup to every lane. Subgroups may have any size, so the last step goes through shared
// memory. All lanes of the workgroup must call them.
shared float reduce_shared[LANES];
float workgroup_add(float x) {
  x = subgroupAdd(x);
  if (gl_NumSubgroups == 1) return x;
  barrier();  // other lanes may still be using reduce_shared from the last call
  if (subgroupElect()) reduce_shared[gl_SubgroupID] = x;
  barrier();
  x = reduce_shared[0];
  for (uint i = 1; i < gl_NumSubgroups; ++i) x += reduce_shared[i];
  return x;
}
float workgroup_max(float x) {
  x = subgroupMax(x);
  if (gl_NumSubgroups == 1) return x;
  barrier();
  if (subgroupElect()) reduce_shared[gl_SubgroupID] = x;
  barrier();
  x = reduce_shared[0];
  for (uint i = 1; i < gl_NumSubgroups; ++i) x = max(x, reduce_shared[i]);
  return x;
}
