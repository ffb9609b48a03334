// Whether this process may use AMX tiles (tiles.cpp asks the operating system once).
#pragma once

namespace sgl {
bool tiles_allowed();
}
